"""Settings of the methods that compare whole distributions: transport, Hermite features, auto-encoders. No torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from understudy.training.settings import Count, Positive

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
_Share = Annotated[float, Field(ge=0, lt=1)]
SMALL_IMAGE = 16 * 16
# Rounding is divided by it: below, what padding rounds in blocks that a record does not reach would no longer be small.
AboveRounding = Annotated[Positive, Field(ge=1e-3)]


class TransportSettings(BaseModel):
    """The Sinkhorn divergence of small cells of images. ``None`` is decided from the declared domain."""

    model_config = _FROZEN
    cells: Count | None = None  # of each class (of the whole batch where labels only cost)
    images: Annotated[int, Field(ge=2)] = 5  # generated in each cell
    regularisation: AboveRounding = 0.02  # of the plan's entropy; costs are mean squares of pixel differences
    iterations: Count = 30
    label_cost: Annotated[Positive, Field(le=100)] | None = None  # for images of different classes; None: never matched


class HermiteSettings(BaseModel):
    """Hermite features of pixels and of groups of pixels, and the fit of a generator to their means."""

    model_config = _FROZEN
    length_scale: Positive = 0.5  # of the kernel of one pixel, whose values lie in [0, 1]
    order: Annotated[int, Field(ge=1, le=200)] = 10  # highest polynomial of the sum kernel
    groups: Annotated[int, Field(ge=0)] | None = None  # of the product kernel; 0: none
    group_pixels: Annotated[int, Field(ge=2, le=8)] = 2
    group_order: Annotated[int, Field(ge=1, le=20)] = 4
    group_share: _Share = 0.7  # of the squared norm of the features
    size_share: Annotated[float, Field(gt=0, lt=1)] = 0.02  # the part of a record's squared norm that counts its class


class AutoencoderSettings(BaseModel):
    """An auto-encoder that is trained by DP-SGD. ``None`` is decided from the image size."""

    model_config = _FROZEN
    code: Count = 10  # numbers that an image is encoded to; the generator has as many latent values
    width: Count | None = None
    learning_rate: Positive = 2e-3
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)


class CodeEmbeddingSettings(BaseModel):
    """A mean embedding of codes and the fit of a generator to it; codes have norm at most one, hence the scale."""

    model_config = _FROZEN
    frequencies: Count = 1000
    length_scale: Positive = 0.3
    size_share: Annotated[float, Field(gt=0, lt=1)] = 0.02  # the part of a record's squared norm that counts its class
    steps: Count = 2000
    batch: Count = 500
    learning_rate: Positive = 1e-3
