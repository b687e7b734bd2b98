"""Configs that methods share: critics, and a generator that learns from image gradients. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from understudy.configs import Config, Count, Natural, NonNegative, Positive, Share, Size, without_defaults
from understudy.data.domain import Domain
from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.models.generator import GeneratorConfig


class CriticsConfig(Config):
    """Critics on disjoint subsets: their size and how they train. ``None`` is decided from the image size."""

    width: Annotated[int, Field(ge=8, multiple_of=8)] | None = None
    learning_rate: Positive = 1e-3
    batch: Count = 32
    per_step: Count = 50  # critics trained for each generator step, in turn
    rounds: Count = 5  # paper mode: critic steps for each draw
    warm_iterations: Natural = 30
    warm_learning_rate: Positive = 1e-3  # of the throw-away generators

    def memory_bytes(self, domain: Domain, subsets: int, parts: int = 1) -> int:
        """Parameters and Adam moments of all critics, and the working memory of those trained together.

        ``parts``: of the critics on one of so many devices, among which they are divided.
        """
        channels, height, columns = domain.shape
        width = self.width or 64
        features = 4 * width * -(-height // 8) * -(-columns // 8)
        parameters = 25 * width * (channels + 10 * width) + features * (1 + (domain.classes or 0))
        working = 40 * self.batch * width * height * columns * -(-self.per_step // parts)
        return -(-subsets // parts) * parameters * 12 + working + 2**30

    def memory_of_device(self, planned: int, domain: Domain, critics: int, devices: int) -> int:
        """Of what is planned for one device: critics are divided among all, what something else needs is not."""
        more = planned > self.memory_bytes(domain, critics)
        return planned if more else self.memory_bytes(domain, critics, devices)

    def check_processes(self, processes: int, critics: int, setting: str) -> None:
        """Refuse more processes than critics: one without any would only wait."""
        if processes > critics:
            raise InputError(
                f"processes: {processes}, but {setting} is {critics}, and a process without any would only wait; pass "
                f"--processes {critics} at most"
            )


class LearnerConfig(Config):
    """A generator that learns from image gradients. ``None`` is decided from the image size and the start."""

    kind: Literal["dcgan", "resnet"] = "dcgan"
    width: Size | None = None
    latent: Size = 16
    output: Literal["sigmoid", "clamp"] | None = None
    latent_law: Literal["normal", "bernoulli"] = "normal"
    spectral_norm: bool = True
    learning_rate: Positive = 1e-4
    first_decay: Share = 0.5  # Adam's momentum
    second_decay: Share = 0.9  # of the squares that Adam divides by
    average_decay: Share = 0.995
    embedding_pull: NonNegative = 100.0  # towards a released embedding, in units of the clip bound
    outside_penalty: NonNegative = 10.0  # on raw values outside [0, 1], in units of the clip bound

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Where the decays are the usual ones a config looks as it always did, so that older versions can read it."""
        return without_defaults(self, write(self), ("first_decay", "second_decay"))

    def decided(self, width: int, *, from_embedding: bool) -> Self:
        """A cut output for a random start, which a sigmoid would not survive; a sigmoid where an embedding holds it."""
        output = self.output or ("sigmoid" if from_embedding else "clamp")
        width = self.width or (width if self.kind == "resnet" else 32)
        return self.model_copy(update={"output": output, "width": width})

    def network(self, domain: Domain) -> GeneratorConfig:
        """The generator that a decided config releases: an average of weights in effect, so without spectral norm."""
        from understudy.models.generator import GeneratorConfig

        assert self.width is not None, "decided by the plan"
        assert self.output is not None, "decided by the plan"
        return GeneratorConfig(
            kind=self.kind,
            shape=domain.shape,
            classes=domain.classes,
            latent=self.latent,
            latent_law=self.latent_law,
            width=self.width,
            output=self.output,
        )
