"""The annotator, a small classifier without batch statistics, and the generator whose images it names."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from understudy.models.generator import AnnotatedGeneratorConfig, Generator, GeneratorConfig, Watch, build_generator

_DRAWS = 2000  # images at a time
_MOST_ROUNDS = 50  # then a class that never came up gets the images that resemble it most


class Annotator(nn.Module):
    """Two stride-2 convolutions and two linear layers with tanh, which bounds activations and suits clipped gradients.

    Takes images (N, C, H, W) in [0, 1] and gives the logit of each class.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        channels, height, width_in_pixels = shape
        places = -(-height // 4) * -(-width_in_pixels // 4)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2, padding=2),
            nn.Tanh(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(2 * width * places, 4 * width),
            nn.Tanh(),
            nn.Linear(4 * width, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes)."""
        logits: Tensor = self.layers(2 * images - 1)
        return logits


class AnnotatedGenerator(Generator):
    """Draws images without labels until enough of each wanted class have come up.

    An image belongs to the class that the classifier finds most likely. A class that hardly ever comes up is filled
    with the drawn images for which it was most likely, so sampling always ends.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        assert isinstance(config, AnnotatedGeneratorConfig)
        self.base = build_generator(config.base)
        self.annotator = Annotator(config.shape, config.classes or 1, config.width)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images of the generator without labels; ``labels`` cannot steer it."""
        images: Tensor = self.base(latent, torch.zeros_like(labels))
        return images

    def pixels(self, raw: Tensor) -> Tensor:
        """Raw output as pixel values in [0, 1]."""
        return self.base.pixels(raw)

    @torch.no_grad()
    def annotate(self, images: Tensor) -> Tensor:
        """Log-probabilities (N, classes) of 8-bit images (N, C, H, W)."""
        pieces = [self.annotator(chunk.float() / 255).log_softmax(dim=1) for chunk in images.split(_DRAWS)]
        return torch.cat(pieces) if pieces else torch.empty((0, self.config.classes or 1))

    @property
    def stepwise(self) -> bool:  # type: ignore[override]
        """Whether the generator without labels draws an image in many steps."""
        return self.base.stepwise

    def with_steps(self, steps: int) -> AnnotatedGenerator:
        """The same generator, drawing images in so many steps."""
        twin = copy.copy(self)  # shares the weights
        twin._modules = {**self._modules, "base": self.base.with_steps(steps)}
        return twin

    @torch.no_grad()
    def sample(
        self, labels: Tensor, generator: torch.Generator, temperature: float = 1.0, watch: Watch | None = None
    ) -> Tensor:
        """One 8-bit image for each label, by rejection; the classes of the images follow the asked labels."""
        result = torch.empty((len(labels), *self.config.shape), dtype=torch.uint8, device=labels.device)
        waiting = {int(label): (labels == label).nonzero()[:, 0] for label in labels.unique()}
        for round_number in range(_MOST_ROUNDS):
            if not waiting:
                break
            images = self.draw(_DRAWS, generator, temperature)
            scores = self.annotate(images)
            last = round_number == _MOST_ROUNDS - 1
            for label, places in list(waiting.items()):
                fitting = self._fitting(scores, label, len(places), last)
                result[places[: len(fitting)]] = images[fitting]
                waiting[label] = places[len(fitting) :]
            waiting = {label: places for label, places in waiting.items() if len(places)}
            if watch is not None:
                watch(len(labels) - sum(len(places) for places in waiting.values()))
        return result

    @torch.no_grad()
    def draw(self, count: int, generator: torch.Generator, temperature: float = 1.0) -> Tensor:
        """8-bit images without any choice of class."""
        nothing = torch.zeros(count, dtype=torch.long, device=generator.device)
        return self.base.sample(nothing, generator, temperature)

    def _fitting(self, scores: Tensor, label: int, wanted: int, last: bool) -> Tensor:
        """Numbers of images of that class, at most as many as wanted; in the last round the likeliest, repeated."""
        if not last:
            return (scores.argmax(dim=1) == label).nonzero()[:wanted, 0]
        likeliest = scores[:, label].argsort(descending=True)[: max(1, len(scores) // 20)]
        return likeliest.repeat(-(-wanted // len(likeliest)))[:wanted]
