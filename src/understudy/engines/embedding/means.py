"""Mean embeddings: a class-wise sum of features, released once with noise, and a generator fitted to it.

An image x has public features phi(x) of norm at most one. The usual ones are random Fourier features: with random
frequencies w_1..w_F, drawn without looking at the data,

    phi(x) = [cos(w_1 x), ..., cos(w_F x), sin(w_1 x), ..., sin(w_F x)] / sqrt(F),        |phi(x)| = 1.

Some frequencies may be tinted: w_f x is then a mean colour of a place in the image. The norm is the same.

The data are read once, for the class-wise sum  S = sum_i e(y_i) (x) [sqrt(1-a) phi(x_i), sqrt(a)], to which Gaussian
noise is added. The constant last feature makes the noisy class sizes a part of the same release. Everything after it is
post-processing. Methods with features of other kinds share the release and the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from understudy.configs import Precision
from understudy.data.domain import Domain
from understudy.devices import low_precision
from understudy.engines.dpsgd.products import arithmetic
from understudy.engines.dpsgd.sharing import SharedSum, Sharing
from understudy.engines.embedding.config import EmbeddingConfig
from understudy.engines.records import load_batch, own_records, people_in_chunks, selection_of
from understudy.errors import CheckError
from understudy.files import read_tensors, write_tensors
from understudy.models.generator import Generator, GeneratorConfig, build_generator
from understudy.privacy.events import CLASS_MEANS, Event
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.loop import Resumable, Stateful
from understudy.runs.run import Run

EMBEDDED = "mean embedding"  # as work that several processes share
_REPORTS = 100
_NUMBERS_AT_ONCE = 2**26  # of the sums of some people
Network = TypeVar("Network", bound=GeneratorConfig)
_TINT = 0.05  # a difference of mean colours, in parts of the range, that tinted frequencies see clearly


class Features(Protocol):
    """Public features of images; ``size_share`` is the square of the constant last one, which counts records."""

    @property
    def size_share(self) -> float:
        """The part of a record's squared norm that counts its class."""
        ...

    @property
    def count(self) -> int:
        """How many features there are, the constant one included."""
        ...

    def __call__(self, images: Tensor) -> Tensor:
        """Features (N, count) of images (N, C, H, W), each row computed from its own image and of norm at most one."""
        ...


class Embedding:
    """Random Fourier features with public frequencies; the constant last feature counts records."""

    def __init__(self, frequencies: Tensor, size_share: float) -> None:
        self.frequencies, self.size_share = frequencies, size_share

    @classmethod
    def of_run(cls, run: Run, settings: EmbeddingConfig) -> Embedding:
        """Frequencies of this run: drawn without the data and kept, because the noisy embedding belongs to them."""
        path = run.files.frequencies
        if not path.exists():
            write_tensors(path, {"frequencies": _draw_frequencies(run, settings)})
        return cls(read_tensors(path)[0]["frequencies"].to(run.device), settings.size_share)

    @property
    def count(self) -> int:
        """Cosines, sines and the constant one."""
        return 2 * self.frequencies.shape[1] + 1

    def __call__(self, images: Tensor) -> Tensor:
        """Unit-norm features (N, 2F + 1) of images (N, C, H, W) in [0, 1]."""
        phase = images.flatten(1) @ self.frequencies
        scale = ((1 - self.size_share) / self.frequencies.shape[1]) ** 0.5
        size = torch.full((len(images), 1), self.size_share**0.5, device=images.device)
        return torch.cat([phase.cos() * scale, phase.sin() * scale, size], dim=1)

    @property
    def sharing(self) -> Sharing:
        """For processes that help: the frequencies, which the leader sends."""
        told = {"frequencies": list(self.frequencies.shape), "size_share": self.size_share}
        return Sharing(told, [self.frequencies], EMBEDDED)


@dataclass(frozen=True)
class NoisyMeans:
    """What the release says: the mean embedding of each class (classes, count - 1) and its share of the records."""

    means_dp: Tensor
    shares_dp: Tensor

    @classmethod
    def from_total(cls, total_dp: Tensor, size_share: float, nominal_units: int) -> NoisyMeans:
        """Divide the noisy sums by the noisy class sizes; a class with hardly any record is taken as 1 % of its due."""
        smallest = 0.01 * nominal_units / len(total_dp)
        sizes_dp = (total_dp[:, -1] / size_share**0.5).clamp(min=smallest)
        return cls((total_dp[:, :-1] / sizes_dp[:, None]).float(), (sizes_dp / sizes_dp.sum()).float())

    def inform(self, network: Network) -> Network:
        """A generator whose law of labels is that of the shares, where it has labels."""
        if network.classes is None:
            return network
        weights = tuple(round(float(share), 6) for share in self.shares_dp)
        return network.model_copy(update={"label_weights": weights})


def release_means(run: Run, embedding: Features, event: Event, sharing: Sharing | None = None) -> NoisyMeans:
    """The one private read: the noisy class-wise sum of embeddings.

    ``sharing`` says what other processes make the same features with.

    Privacy: a record adds one row of norm at most C = 1 to one class, a person the clipped sum of all its rows over all
    classes (add-remove, sensitivity C); one Gaussian event, no sampling, recorded before the sum is used. The sum is
    divided by noisy sizes, never by a private count. Of several processes each adds the rows of its own units.
    """
    mechanism = GaussianSum(run.ledger, run.randomness, clip=1.0, event=event)

    def compute_total() -> Tensor:
        total = _class_sums(run, embedding, mechanism, sharing).take()
        mechanism.check_finite()
        return total

    total_dp = mechanism.release_once(compute_total, run.files.embedding).to(run.device)
    return NoisyMeans.from_total(total_dp, embedding.size_share, run.plan.domain.nominal_units)


def assist_means(run: Run, embedding: Features, sharing: Sharing) -> SharedSum:
    """In a process that follows: the class-wise sum of its own units, with features that the leader fills in.

    Privacy: as ``release_means``; what is summed goes to the leader, who adds the noise.
    """
    event = next(event for event in run.plan.events if event.purpose == CLASS_MEANS)
    mechanism = GaussianSum(run.ledger, run.randomness, clip=1.0, event=event)
    return _class_sums(run, embedding, mechanism, sharing)


def assist_embedding(run: Run, told: Mapping[str, Any]) -> SharedSum:
    """The same with Fourier features. Privacy: as ``assist_means``."""
    embedding = Embedding(torch.zeros(told["frequencies"], device=run.device), told["size_share"])
    return assist_means(run, embedding, embedding.sharing)


def _class_sums(run: Run, embedding: Features, mechanism: GaussianSum, sharing: Sharing | None) -> SharedSum:
    def own_sum() -> Tensor:
        total = torch.zeros(run.plan.domain.classes or 1, embedding.count, dtype=torch.float64, device=run.device)
        add = _add_people if run.plan.domain.unit == "person" else _add_records
        add(run, embedding, mechanism, total)
        return total

    return SharedSum(run.team, mechanism, own_sum, sharing)


def _add_records(run: Run, embedding: Features, mechanism: GaussianSum, total: Tensor) -> None:
    micro_batch, own = run.plan.config.runtime.micro_batch, own_records(run.data, "record", run.team)
    for start in range(0, len(own), micro_batch):
        some = selection_of(own[start : start + micro_batch])
        images_private, labels_private = load_batch(run.data, some, run.device)
        mechanism.accumulate(total, _features(embedding, images_private, micro_batch), labels_private)


def _add_people(run: Run, embedding: Features, mechanism: GaussianSum, total: Tensor) -> None:
    """Every person's sum over classes and features is one row: whoever has many images weighs no more than another.

    Privacy: clipped as one row of classes x features. Class by class, a person in k classes would add sqrt(k) C.
    """
    classes, features = total.shape
    micro_batch, at_once = run.plan.config.runtime.micro_batch, max(1, _NUMBERS_AT_ONCE // total.numel())
    for records, owners, people in people_in_chunks(run.data, micro_batch, at_once, run.team):
        images_private, labels_private = load_batch(run.data, records, run.device)
        rows = _features(embedding, images_private, micro_batch)
        sums = torch.zeros(people * classes, features, device=run.device)
        sums.index_add_(0, owners.to(run.device) * classes + labels_private, rows)
        mechanism.accumulate(total.view(-1), sums.view(people, -1))


def _features(embedding: Features, images_private: Tensor, micro_batch: int) -> Tensor:
    """Features of at most a micro-batch of images, computed as of a whole one.

    Privacy: who shares a chunk with whom changes no bit, since products of few rows are rounded otherwise than those of
    many; without a unit, the last chunk has fewer.
    """
    filling = images_private.new_zeros(max(0, micro_batch - len(images_private)), *images_private.shape[1:])
    return embedding(torch.cat([images_private, filling]))[: len(images_private)]


def distance(images: Tensor, labels: Tensor, embedding: Features, target: NoisyMeans) -> Tensor:
    """Squared distance of class-wise mean embeddings between labelled images and the target, weighted by class.

    The squared norm of a mean over few images is too large, since each image meets itself in it; that would reward the
    images of a class for being alike. The unbiased value is (n |mean|^2 - mean of |phi|^2) / (n - 1).
    """
    members = torch.nn.functional.one_hot(labels, len(target.means_dp)).to(images.dtype)
    sizes = members.sum(dim=0)
    features = embedding(images)[:, :-1]
    means = (members.T @ features) / sizes.clamp(min=1)[:, None]
    own = (members.T @ features.square().sum(dim=1)) / sizes.clamp(min=1)
    norms = (sizes * means.square().sum(dim=1) - own) / (sizes - 1).clamp(min=1)
    cross = (means * target.means_dp).sum(dim=1)
    squares = norms - 2 * cross + target.means_dp.square().sum(dim=1)
    return (target.shares_dp * squares).sum()


def slopes(images: Tensor, labels: Tensor, embedding: Features, target: NoisyMeans) -> Tensor:
    """Where each image should move to bring the class means closer: the gradient of N * distance for each of N images.

    Privacy: post-processing of the released means; it may be used in every step of a training at no further cost.
    """
    images = images.detach().requires_grad_()
    return torch.autograd.grad(len(images) * distance(images, labels, embedding, target), images)[0]


# The fit of a generator: post-processing


class FitConfig(Protocol):
    """How a generator is fitted to a released embedding."""

    steps: int
    batch: int  # generated images in a step
    learning_rate: float  # of Adam, at the start


class Fit:
    """Fits a generator to noisy means, step by step: Adam with a falling learning rate.

    Privacy: post-processing of the released means; no private value is read.
    """

    def __init__(
        self,
        generator: Generator,
        embedding: Features,
        target: NoisyMeans,
        settings: FitConfig,
        precision: Precision = "fp32",
    ) -> None:
        self.generator, self.embedding, self.target, self.settings = generator, embedding, target, settings
        self.precision = precision
        self.optimizer = torch.optim.Adam(generator.parameters(), settings.learning_rate, betas=(0.5, 0.999))
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, settings.steps)

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the generator."""
        return {"optimizer": self.optimizer, "schedule": self.schedule}

    def labels(self, random: torch.Generator) -> Tensor:
        """Equally many of each class, and at least two, on the device of ``random``."""
        classes = len(self.target.means_dp)
        return torch.arange(classes, device=random.device).repeat_interleave(max(2, self.settings.batch // classes))

    def loss(self, random: torch.Generator) -> Tensor:
        """Squared distance of a fresh batch from the target, and the pull back into [0, 1] where the output is cut."""
        labels = self.labels(random)
        with low_precision(self.precision, random.device):
            raw = self.generator(self.generator.draw_latent(len(labels), random), labels).float()
        if self.generator.config.output == "sigmoid":
            return distance(self.generator.pixels(raw), labels, self.embedding, self.target)
        images = _cut(raw)
        return distance(images, labels, self.embedding, self.target) + (raw - images.detach()).square().mean()

    def step(self, random: torch.Generator) -> Tensor:
        """One step; returns the loss."""
        with arithmetic("tf32" if self.precision != "fp32" and random.device.type == "cuda" else "fp32"):
            loss = self.loss(random)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


class FittedConfig(FitConfig, Protocol):
    """The same, and the generator that is fitted."""

    latent: int
    width: int


def fitted_network(settings: FittedConfig, domain: Domain) -> GeneratorConfig:
    """The generator that is fitted."""
    return GeneratorConfig(
        kind="dcgan", shape=domain.shape, classes=domain.classes, latent=settings.latent, width=settings.width
    )


def fitted_generator(
    run: Run, features: Features, target: NoisyMeans, settings: FittedConfig, random: torch.Generator
) -> Generator:
    """A generator fitted to released means in a resumable loop. Privacy: post-processing of the means."""
    network = target.inform(fitted_network(settings, run.plan.domain))
    generator = build_generator(network).to(run.device)
    fit = Fit(generator, features, target, settings, run.plan.config.runtime.precision)
    for step in Resumable(run, generator, fit.parts()).steps(settings.steps):
        report_fit(run, step, settings.steps, fit.step(random))
    return generator


def report_fit(run: Run, step: int, steps: int, loss: Tensor) -> None:
    """Report the loss of a fit about a hundred times in ``steps`` steps; one that is not finite stops the run.

    Privacy: the loss is computed from generated images and the released means, so showing it reveals nothing more.
    """
    if step % max(1, steps // _REPORTS):
        return
    if not math.isfinite(float(loss)):
        raise CheckError(
            f"fit: the distance to the released embedding is not finite at step {step}, so the generator is broken; "
            "nothing more was spent. Train again with a lower method.learning_rate"
        )
    run.report(step, loss=float(loss))


def _cut(raw: Tensor) -> Tensor:
    """Raw values cut to [0, 1], with the gradient passed straight through."""
    return raw + (raw.clamp(0, 1) - raw).detach()


def _draw_frequencies(run: Run, settings: EmbeddingConfig) -> Tensor:
    """Frequencies (pixels, count) over all pixels at the length scales, then tinted ones. No record is looked at."""
    domain, random = run.plan.domain, run.randomness.generator()
    assert settings.frequencies is not None, "decided by the plan"
    assert settings.length_scales is not None, "decided by the plan"
    of_places = round(settings.frequencies * settings.tinted)
    over_all = settings.frequencies - of_places
    scales = torch.tensor(settings.length_scales) * domain.values**0.5
    of_frequency = scales[torch.arange(over_all) % len(scales)]
    drawn = torch.randn(domain.values, over_all, generator=random) / of_frequency
    return torch.cat([drawn, tinted_frequencies(domain.shape, of_places, random)], dim=1) if of_places else drawn


def tinted_frequencies(shape: tuple[int, int, int], count: int, random: torch.Generator) -> Tensor:
    """Frequencies (pixels, count) of which each sees the mean colour of one place, and nothing else of an image.

    A place is a quarter, a half or all of either side and lies anywhere. Few numbers decide such a colour, so classes
    and images that differ in it are told apart though they are alike in most pixels.
    """
    channels, *sides = shape
    colours = torch.randn(count, channels, generator=random) / (_TINT * channels**0.5)
    corners = torch.rand(count, 2, generator=random)
    parts = torch.tensor([4, 2, 1])[torch.arange(count) % 3]
    inside = []
    for side, corner in zip(sides, corners.T, strict=True):
        length = side // parts
        first = (corner * (side - length + 1)).long().clamp(max=side - 1)
        place = torch.arange(side)
        inside.append((place >= first[:, None]) & (place < (first + length)[:, None]))
    where = (inside[0][:, :, None] & inside[1][:, None, :]).float()
    where /= where.sum(dim=(1, 2), keepdim=True)
    return (colours[:, :, None, None] * where[:, None]).flatten(1).T.contiguous()
