"""Settings of a generator and a discriminator that play against each other; importing them imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy.training.settings import Count, Positive

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
Share = Annotated[float, Field(ge=0, lt=1)]
Adversary = Literal["logistic", "wasserstein"]  # the loss: of a discriminator's logits, or of a critic's scores


class AdversarySettings(BaseModel):
    """Networks, optimiser and what is released. ``None`` is decided from the declared image size."""

    model_config = _FROZEN
    loss: Adversary = "logistic"
    width: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    latent: Count | None = None
    learning_rate: Positive | None = None  # of the discriminator
    generator_learning_rate: Positive | None = None
    betas: tuple[Share, Share] = (0.5, 0.999)
    average_decay: Share = 0.98  # of the generator's weights; 0 releases the last ones
    head_start: Annotated[int, Field(ge=0)] | None = None  # discriminator steps before the first generator step
    embedding_pull: Annotated[float, Field(ge=0)] = 30.0  # towards a released embedding, beside the logistic loss
