"""What every released generator has in common: its frozen config, its latent law, and how images are drawn from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer, model_validator
from torch import Tensor, nn

from understudy.configs import Classes, Config, Size, without_defaults
from understudy.errors import InputError
from understudy.models.sampler import SamplerConfig, UNetBlocks, UNetWidths

_SAMPLE_BATCH = 1000
_Side = Annotated[int, Field(ge=8, le=64)]
ImageShape = tuple[Annotated[int, Field(ge=1, le=3)], _Side, _Side]  # channels, height, width


class GeneratorConfig(Config):
    """Everything needed to build a generator and to draw from it; it is released next to the weights.

    ``output`` says how raw values become pixels in [0, 1]: ``sigmoid`` squashes, ``tanh`` does so twice as steeply,
    ``clamp`` cuts off (its gradient does not vanish during training, see ``engines/learner.py``). ``label_weights`` is
    the law of labels when none is asked.
    """

    kind: Literal["dcgan", "decoder", "dpgan", "perceptron", "resnet", "selu"] = "dcgan"
    shape: ImageShape
    classes: Classes | None = None
    latent: Size = 10
    latent_law: Literal["normal", "bernoulli", "uniform"] = "normal"  # uniform between -1 and 1
    width: Size = 64
    output: Literal["sigmoid", "clamp", "tanh"] = "sigmoid"
    spectral_norm: bool = False
    label_weights: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] | None = None

    @model_validator(mode="after")
    def _weights_fit(self) -> GeneratorConfig:
        if self.label_weights is None:
            return self
        if len(self.label_weights) != self.classes:
            raise ValueError(f"label_weights: {len(self.label_weights)} weights for classes={self.classes}")
        if sum(self.label_weights) < 1e-9:  # in single precision, in which labels are drawn, it could be none at all
            raise ValueError(f"label_weights: they add up to {sum(self.label_weights):g}, which is no law of labels")
        return self

    @property
    def input_size(self) -> int:
        """Length of the generator's input: latent values and the one-hot label."""
        return self.latent + (self.classes or 0)


Watch = Callable[[int], None]  # hears how many images are drawn


class Generator(nn.Module):
    """A conditional generator: latent values and labels in, raw images out (``pixels`` brings them into [0, 1])."""

    stepwise: bool = False  # whether an image is drawn in many steps, which a graphics card does far sooner

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config

    def draw_latent(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` latent vectors from the declared law, on the generator's device."""
        shape = (count, self.config.latent)
        if self.config.latent_law == "bernoulli":
            return torch.randint(0, 2, shape, generator=generator, device=generator.device).float()
        if self.config.latent_law == "uniform":
            return 2 * torch.rand(shape, generator=generator, device=generator.device) - 1
        return torch.randn(shape, generator=generator, device=generator.device)

    def draw_labels(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` labels from the declared law (uniform unless label weights were released)."""
        if self.config.classes is None:
            return torch.zeros(count, dtype=torch.long, device=generator.device)
        weights = self.config.label_weights or (1.0,) * self.config.classes
        law = torch.tensor(weights, device=generator.device)
        return torch.multinomial(law, count, replacement=True, generator=generator)

    def condition(self, latent: Tensor, labels: Tensor) -> Tensor:
        """The network's input: latent values followed by the one-hot label, if there are classes."""
        if self.config.classes is None:
            return latent
        one_hot = torch.nn.functional.one_hot(labels, self.config.classes).to(latent.dtype)
        return torch.cat([latent, one_hot], dim=1)

    def pixels(self, raw: Tensor) -> Tensor:
        """Raw output as pixel values in [0, 1]."""
        if self.config.output == "tanh":
            return (raw.tanh() + 1) / 2
        return raw.sigmoid() if self.config.output == "sigmoid" else raw.clamp(0, 1)

    def with_steps(self, steps: int) -> Generator:
        """The same generator, drawing images in so many steps."""
        raise InputError(
            f"sample steps: {steps} were asked for, but this generator draws an image at once; leave it out"
        )

    def draw_named(
        self, labels: Tensor, generator: torch.Generator, temperature: float = 1.0, watch: Watch | None = None
    ) -> tuple[Tensor, Tensor]:
        """One 8-bit image for each label, and what each is called: by its label, unless a teacher knows better."""
        return self.sample(labels, generator, temperature, watch), labels

    @torch.no_grad()
    def sample(
        self, labels: Tensor, generator: torch.Generator, temperature: float = 1.0, watch: Watch | None = None
    ) -> Tensor:
        """One 8-bit image (N, C, H, W) for each label; ``temperature`` scales the latent values."""
        pieces = []
        for chunk in labels.split(_SAMPLE_BATCH):
            latent = self.draw_latent(len(chunk), generator)
            images = self.pixels(self(latent if temperature == 1 else latent * temperature, chunk))
            pieces.append((images * 255).round().to(torch.uint8))
            if watch is not None:
                watch(sum(map(len, pieces)))
        return torch.cat(pieces) if pieces else torch.empty((0, *self.config.shape), dtype=torch.uint8)


class DiffusionGeneratorConfig(GeneratorConfig):
    """A U-Net of these widths, one for each resolution, and the settings of the sampler that draws with it."""

    kind: Literal["diffusion"] = "diffusion"  # type: ignore[assignment]
    output: Literal["clamp"] = "clamp"
    widths: UNetWidths
    blocks: UNetBlocks = 2
    sampler: SamplerConfig = SamplerConfig()


class TeacherModelConfig(Config):
    """A classifier on fixed features (``models/teacher.py``); ``width`` is that of a network.

    ``scales`` and ``directions`` are of scattering, ``filters`` and ``mirrored`` of patches.
    """

    kind: Literal["linear", "network"] = "linear"
    features: Literal["scattering", "patches"] = "scattering"
    scales: Annotated[int, Field(ge=1, le=3)] = 2
    directions: Annotated[int, Field(ge=2, le=16)] = 8
    filters: Annotated[int, Field(ge=1, le=1024)] = 256
    mirrored: bool = False
    width: Size = 32

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A teacher on scattering looks as it always did, so that older versions can read it."""
        return without_defaults(self, write(self), ("features", "filters", "mirrored"))


class AnnotatedGeneratorConfig(GeneratorConfig):
    """A generator and a classifier that names what it draws, whether it has classes of its own or none.

    The classifier is a ``teacher`` or, without one, a small network on pixels of this ``width``. Where the generator
    has classes and its images mean nothing to the classifier, ``names`` is false: they keep the class they were drawn
    for. Otherwise ``shifts`` are added to the logarithms of the classifier's probabilities when it names what is drawn,
    and ``drawn_weight`` to that of the class an image was drawn for; without them its word stands as it is.
    """

    kind: Literal["annotated"] = "annotated"  # type: ignore[assignment]
    base: DiffusionGeneratorConfig | GeneratorConfig
    teacher: TeacherModelConfig | None = None
    names: bool = True
    shifts: tuple[Annotated[float, Field(ge=-1e3, le=1e3)], ...] | None = None  # one for each class
    drawn_weight: Annotated[float, Field(ge=0, le=1e3)] = 0.0

    @classmethod
    def taught(
        cls, base: DiffusionGeneratorConfig | GeneratorConfig, teacher: TeacherModelConfig, classes: int | None = None
    ) -> AnnotatedGeneratorConfig:
        """A generator with a teacher beside it, before that was tried; ``classes`` are for one that has none."""
        return cls(
            shape=base.shape,
            classes=base.classes or classes,
            latent=base.latent,
            latent_law=base.latent_law,
            width=teacher.width,
            label_weights=base.label_weights,
            base=base,
            teacher=teacher,
        )

    @model_validator(mode="after")
    def _names_the_same_classes(self) -> AnnotatedGeneratorConfig:
        if self.classes is None or self.base.classes not in (None, self.classes) or self.shape != self.base.shape:
            raise ValueError("an annotated generator names the classes of one of the same shape, or adds them to it")
        if self.base.classes is None and not self.names:
            raise ValueError("names: a generator without classes has none but those that its classifier gives")
        if self.shifts is not None and len(self.shifts) != self.classes:
            raise ValueError(
                f"shifts: found {len(self.shifts)}, but there are {self.classes} classes; give one for each"
            )
        return self


AnyGeneratorConfig = AnnotatedGeneratorConfig | DiffusionGeneratorConfig | GeneratorConfig


def read_generator_config(values: object) -> AnyGeneratorConfig:
    """The config of a generator of any kind, from plain data."""
    return TypeAdapter[AnyGeneratorConfig](AnyGeneratorConfig).validate_python(values)


def build_generator(config: GeneratorConfig) -> Generator:
    """The network that a config describes, freshly initialised."""
    from understudy.models.annotator import AnnotatedGenerator
    from understudy.models.autoencoder import DecoderGenerator
    from understudy.models.dcgan_generator import DcganGenerator
    from understudy.models.diffusion import DiffusionGenerator
    from understudy.models.dpgan import DpganGenerator
    from understudy.models.perceptron import PerceptronGenerator
    from understudy.models.resnet_generator import ResnetGenerator
    from understudy.models.selu import SeluGenerator

    kinds: dict[str, type[Generator]] = {
        "annotated": AnnotatedGenerator,
        "dcgan": DcganGenerator,
        "decoder": DecoderGenerator,
        "diffusion": DiffusionGenerator,
        "dpgan": DpganGenerator,
        "resnet": ResnetGenerator,
        "perceptron": PerceptronGenerator,
        "selu": SeluGenerator,
    }
    return kinds[config.kind](config)


def upsampling_plan(shape: tuple[int, int, int], smallest: int) -> tuple[int, tuple[int, int]]:
    """How many doublings lead from a small map to the image, and the size of that map (its result is cropped)."""
    _, height, width = shape
    doublings = max(1, math.ceil(math.log2(max(height, width) / smallest)))
    return doublings, (math.ceil(height / 2**doublings), math.ceil(width / 2**doublings))


def crop(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """The middle part of the images, of the declared height and width."""
    _, height, width = shape
    top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
    return images[:, :, top : top + height, left : left + width]


class PixelNorm(nn.Module):
    """Scale the channels of each pixel to unit mean square; acts on each example for itself."""

    def forward(self, features: Tensor) -> Tensor:
        """Normalised features of the same shape."""
        return features * torch.rsqrt(features.square().mean(dim=1, keepdim=True) + 1e-8)
