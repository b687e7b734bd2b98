"""The generator whose images a classifier names: a private teacher, or a small network on pixels."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from understudy.devices import choose_device
from understudy.models.generator import (
    AnnotatedGeneratorConfig,
    Generator,
    GeneratorConfig,
    TeacherModelConfig,
    Watch,
    build_generator,
)
from understudy.models.teacher import Teacher

_DRAWS = 2000  # images at a time
_NAMED = 10_000  # images drawn before they are named
_MOST_ROUNDS = 50  # then a class that never came up gets the images that resemble it most
_ASKED, _ASKED_STEPWISE = 2000, 400  # images on which a teacher is tried, of a diffusion model fewer
_STEPS = 18  # of a diffusion model for them
_LEAST_AGREEMENT = 0.2  # of two classes, chance alone reaches it at four standard deviations
_EVENING = 200  # rounds in which shifts are found
_LEAST_ERROR = 1e-3
_LOYALTY = 0.5  # of what the class an image was drawn for would count if the classifier knew how sure it may be


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


@dataclass(frozen=True)
class Trial:
    """What came out of a trial of a classifier on images that were drawn for known classes."""

    shifts: tuple[float, ...]  # of the logarithm of each class's probability, with which all come up equally often
    same: float  # how often it then gives the class that was asked for
    by_chance: float  # how often that would be chance

    @property
    def agreement(self) -> float:
        """Cohen's kappa: 1 where it always gives the class that was asked for, 0 where no more often than by chance."""
        return (self.same - self.by_chance) / max(1 - self.by_chance, 1e-9)

    @property
    def drawn_weight(self) -> float:
        """How much the class that an image was drawn for counts: as the word of one who errs with a known probability.

        Generator and classifier are taken to err equally often, and where one does, to hit any other class.
        """
        error = max((1 - self.same) / 2, _LEAST_ERROR)
        return round(max(0.0, _LOYALTY * math.log((1 - error) * (len(self.shifts) - 1) / error)), 4)


def evening_shifts(scores: Tensor) -> Tensor:
    """Shifts of log-probabilities (N, classes) with which all classes are equally likely over all rows together."""
    shifts = torch.zeros(scores.shape[1], dtype=scores.dtype, device=scores.device)
    for _ in range(_EVENING):
        shares = (scores + shifts).softmax(dim=1).mean(dim=0).clamp(min=1e-9)
        shifts = shifts - (shares.log() + math.log(len(shifts))) / 2
    return shifts - shifts.mean()


class AnnotatedGenerator(Generator):
    """A generator and a classifier that names its images; an image belongs to the class that it finds most likely.

    Images of a class are drawn until enough have come up: from a generator without classes whatever it draws, from one
    with classes of its own those that it drew for that class, so that both agree. A class that hardly ever comes up is
    filled with the drawn images for which it was most likely, so sampling always ends. Where the config says that the
    classifier does not name images, all keep the class they were drawn for.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        assert isinstance(config, AnnotatedGeneratorConfig)
        self.base, classes = build_generator(config.base), config.classes or 1
        self.annotator: nn.Module = (
            Annotator(config.shape, classes, config.width)
            if config.teacher is None
            else Teacher(config.shape, classes, config.teacher)
        )

    @property
    def steered(self) -> bool:
        """Whether the generator draws classes by itself."""
        return self.base.config.classes is not None

    @property
    def naming(self) -> bool:
        """Whether the classifier names images; otherwise they keep the class they were drawn for."""
        assert isinstance(self.config, AnnotatedGeneratorConfig)
        return self.config.names

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images of the generator; one without classes cannot be steered by ``labels``."""
        images: Tensor = self.base(latent, labels if self.steered else torch.zeros_like(labels))
        return images

    def pixels(self, raw: Tensor) -> Tensor:
        """Raw output as pixel values in [0, 1]."""
        return self.base.pixels(raw)

    @torch.no_grad()
    def annotate(self, images: Tensor, watch: Watch | None = None) -> Tensor:
        """Log-probabilities (N, classes) of 8-bit images (N, C, H, W); ``watch`` hears how many are done."""
        pieces: list[Tensor] = []
        for chunk in images.split(_DRAWS):
            pieces.append(self.annotator(chunk.float() / 255).log_softmax(dim=1))
            if watch is not None:
                watch(sum(map(len, pieces)))
        return torch.cat(pieces) if pieces else torch.empty((0, self.config.classes or 1))

    @property
    def stepwise(self) -> bool:  # type: ignore[override]
        """Whether images are drawn in many steps, or named by a teacher, whose features take longer than they do."""
        return self.base.stepwise or isinstance(self.annotator, Teacher)

    def with_steps(self, steps: int) -> AnnotatedGenerator:
        """The same generator, drawing images in so many steps."""
        twin = copy.copy(self)  # shares the weights
        twin._modules = {**self._modules, "base": self.base.with_steps(steps)}
        return twin

    @torch.no_grad()
    def draw_named(
        self, labels: Tensor, generator: torch.Generator, temperature: float = 1.0, watch: Watch | None = None
    ) -> tuple[Tensor, Tensor]:
        """One 8-bit image for each label; where the generator drew it for a class, the name is the classifier's."""
        if not (self.steered and self.naming):
            return self.sample(labels, generator, temperature, watch), labels
        images, names = [labels.new_empty((0, *self.config.shape), dtype=torch.uint8)], [labels[:0]]
        for chunk in labels.split(_NAMED):
            before = sum(map(len, names))
            images.append(self.base.sample(chunk, generator, temperature))
            names.append(self._named(images[-1], chunk, None if watch is None else partial(_further, watch, before)))
        return torch.cat(images), torch.cat(names)

    @torch.no_grad()
    def sample(
        self, labels: Tensor, generator: torch.Generator, temperature: float = 1.0, watch: Watch | None = None
    ) -> Tensor:
        """One 8-bit image for each label, by rejection; the classes of the images follow the asked labels."""
        if not self.naming:
            return self.base.sample(labels, generator, temperature, watch)
        result = torch.empty((len(labels), *self.config.shape), dtype=torch.uint8, device=labels.device)
        waiting = {int(label): (labels == label).nonzero()[:, 0] for label in labels.unique()}
        for round_number in range(_MOST_ROUNDS):
            if not waiting:
                break
            last = round_number == _MOST_ROUNDS - 1
            for label, (images, scores) in self._candidates(waiting, generator, temperature).items():
                places = waiting[label]
                fitting = self._fitting(scores, label, len(places), last)
                result[places[: len(fitting)]] = images[fitting]
                waiting[label] = places[len(fitting) :]
            waiting = {label: places for label, places in waiting.items() if len(places)}
            if watch is not None:
                watch(len(labels) - sum(len(places) for places in waiting.values()))
        return result

    @torch.no_grad()
    def trial(self, generator: torch.Generator) -> Trial:
        """How the classifier names some images that are drawn for known classes, for all equally many."""
        classes = self.config.classes or 1
        base = self.base.with_steps(_STEPS) if self.base.stepwise else self.base
        asked = torch.arange(_ASKED_STEPWISE if self.base.stepwise else _ASKED, device=generator.device) % classes
        scores = self.annotate(base.sample(asked, generator)).double().to(asked.device)
        shifts = evening_shifts(scores)
        given = (scores + shifts).argmax(dim=1)
        laws = [torch.bincount(each, minlength=classes) / len(asked) for each in (asked, given)]
        return Trial(
            shifts=tuple(round(float(shift), 4) for shift in shifts),
            same=float((given == asked).double().mean()),
            by_chance=float(laws[0] @ laws[1]),
        )

    def _named(self, images: Tensor, drawn_for: Tensor, watch: Watch | None = None) -> Tensor:
        """The class of each image: what the classifier says of it, and what it was drawn for, each with its weight."""
        assert isinstance(self.config, AnnotatedGeneratorConfig)
        scores = self._scores(images, watch).to(drawn_for.device)
        own = nn.functional.one_hot(drawn_for, scores.shape[1])
        return (scores + self.config.drawn_weight * own).argmax(dim=1)

    def _scores(self, images: Tensor, watch: Watch | None = None) -> Tensor:
        """What the classifier says of images that were drawn: log-probabilities, shifted as the config says."""
        assert isinstance(self.config, AnnotatedGeneratorConfig)
        scores = self.annotate(images, watch)
        return scores if self.config.shifts is None else scores + scores.new_tensor(self.config.shifts)

    def _candidates(
        self, waiting: dict[int, Tensor], generator: torch.Generator, temperature: float
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Images that may become those of each class that is waited for, with what the classifier says of them."""
        if not self.steered:
            images = self.draw(_DRAWS, generator, temperature)
            scores = self._scores(images)
            return dict.fromkeys(waiting, (images, scores))
        counts = [len(places) for places in waiting.values()]
        asked = torch.tensor(list(waiting), device=generator.device).repeat_interleave(
            torch.tensor(counts, device=generator.device)
        )
        images = self.base.sample(asked, generator, temperature)
        return dict(
            zip(waiting, zip(images.split(counts), self._scores(images).split(counts), strict=True), strict=True)
        )

    @torch.no_grad()
    def draw(self, count: int, generator: torch.Generator, temperature: float = 1.0) -> Tensor:
        """8-bit images without any choice of class."""
        return self.base.sample(self.base.draw_labels(count, generator), generator, temperature)

    def _fitting(self, scores: Tensor, label: int, wanted: int, last: bool) -> Tensor:
        """Numbers of images of that class, at most as many as wanted; in the last round the likeliest, repeated."""
        if not last:
            return (scores.argmax(dim=1) == label).nonzero()[:wanted, 0]
        likeliest = scores[:, label].argsort(descending=True)[: max(1, len(scores) // 20)]
        return likeliest.repeat(-(-wanted // len(likeliest)))[:wanted]


def _further(watch: Watch, before: int, done: int) -> None:
    watch(before + done)


def named_by(
    teacher: Teacher, base: Generator, config: TeacherModelConfig, classes: int | None = None
) -> AnnotatedGenerator:
    """A generator with a teacher beside it, which names what it draws; the law of labels stays the generator's.

    ``classes`` are for one that has none of its own. Where it has, the teacher is tried first: it has learnt from real
    images, and those that are drawn are never quite like them. So its word is shifted until all classes come up equally
    often where they are asked for equally often, and the class that an image was drawn for counts beside it. Where it
    names them no better than by chance even so, they keep that class.

    Privacy: post-processing; the trial takes what is released, and a constant seed.
    """
    generator = AnnotatedGenerator(AnnotatedGeneratorConfig.taught(base.config, config, classes))
    generator.base.load_state_dict(base.state_dict())
    generator.base.requires_grad_(False)
    generator.annotator.load_state_dict(teacher.state_dict())
    if generator.steered:
        device = choose_device() if base.stepwise else torch.device("cpu")
        trial = generator.eval().to(device).trial(torch.Generator(device).manual_seed(0))
        found = {"shifts": trial.shifts, "drawn_weight": trial.drawn_weight}
        names = trial.agreement >= _LEAST_AGREEMENT
        generator.config = generator.config.model_copy(update=found if names else {"names": False})
    return generator.cpu()
