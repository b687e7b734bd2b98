"""The teacher as it is configured and planned: its settings, its events, what it takes of a budget. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from understudy.configs import Config, Count, MethodConfig, Positive, PrivacyConfig, Share, Size, without_defaults
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.errors import InputError
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, NoSampling, PoissonSampling, Sampling
from understudy.privacy.plan import Costs

PURPOSE = "the teacher's gradients"
CLIP = 1.0  # of a gradient: another bound with a rate to match would be the same teacher
MOMENTUM = 0.9  # of a linear teacher
IMAGES_PER_PERSON = 8  # that a network is shown of each in a step, where people are declared

_DIRECTIONS, _FILTERS = 8, 256  # of scattering, of patches
_LEARNING_FILTERS = 8.0  # seconds, of 256 in colour
_NETWORK_STEPS, _NETWORK_BATCH, _NETWORK_RATE = 1500, 1024, 1e-3
_LONGEST_WAY = 5000.0  # of a linear teacher: steps * rate / (1 - momentum); a longer one teaches hardly more
_FURTHEST_STRAY = 0.1  # how far noise may carry a weight on that way
_LARGEST_FOR_TWO_SCALES = 40  # pixels
_SMALLEST_FOR_THREE_SCALES = 12  # pixels: the reflected margin must not be wider than the image
_RATE, _FEWEST_STEPS = 0.5, 100  # at a larger rate the way is not followed well, at a smaller one it takes longer


Calibrate = Callable[[Callable[[float], Event]], float]  # the least noise that leaves an event within its part


class TaughtPrivacy(PrivacyConfig):
    """What a teacher changes of epsilon; ``None`` is decided from its share of epsilon and the declared domain."""

    teacher_share: Share = 0.0  # of epsilon; 0: no teacher
    teacher_noise_multiplier: Positive | None = None
    teacher_steps: Count | None = None
    teacher_batch: Count | None = None  # expected units a step of a network; a linear teacher always sees all


class PrivateTeacherConfig(Config):
    """The teacher itself; ``None`` is decided from the declared domain and the noise.

    ``linear`` is a softmax layer on fixed features; every step takes all records, so its price does not hang on secret
    batches. ``network`` is a small convolutional network on the same features, trained on Poisson batches. Features are
    those of scattering, or of patches, whose filters learn from images of chance alone; unless they are named, patches
    in colour and scattering in grey.
    """

    kind: Literal["linear", "network"] = "linear"
    features: Literal["scattering", "patches"] | None = None
    scales: Annotated[int, Field(ge=1, le=3)] | None = None
    directions: Annotated[int, Field(ge=2, le=16)] = _DIRECTIONS
    filters: Annotated[int, Field(ge=1, le=1024)] | None = None  # of patches
    mirrored: bool = False  # whether patches and their mirror images count alike: for things, not for writing
    width: Size = 32  # of a network
    learning_rate: Positive | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A teacher on scattering that nobody asked for by name looks as it always did: older versions can read it."""
        return without_defaults(self, write(self), ("features", "filters", "mirrored"))

    def sampling(self, batch: int | None, domain: Domain) -> Sampling:
        """Who takes part in a step: all records, or those of a Poisson batch."""
        if self.kind == "linear":
            return NoSampling()
        return PoissonSampling(rate=sampling_rate(batch or 1, domain.nominal_units))

    def event(self, privacy: TaughtPrivacy, domain: Domain, noise_multiplier: float) -> Event:
        """All steps, as they are accounted."""
        return Event(
            noise_multiplier=noise_multiplier,
            sensitivity="C",
            sampling=self.sampling(privacy.teacher_batch, domain),
            count=privacy.teacher_steps or 1,
            purpose=PURPOSE,
        )

    def with_steps(self, privacy: TaughtPrivacy, domain: Domain, calibrate: Calibrate) -> TaughtPrivacy:
        """Steps and, for a network, the batch: as given, or by public facts.

        A linear teacher takes as many as its way needs: T Gaussians of multiplier m cost what one of m / sqrt(T) does,
        so ``calibrate``, given how events follow from a multiplier, finds that of one step for all, and it says how far
        noise will carry a weight, however many steps there are.
        """
        if self.kind == "network":
            batch = privacy.teacher_batch or max(1, min(_NETWORK_BATCH, domain.nominal_units // 10))
            steps = privacy.teacher_steps or _NETWORK_STEPS
            return privacy.model_copy(update={"teacher_steps": steps, "teacher_batch": batch})
        if privacy.teacher_batch is not None:
            raise InputError(
                f"teacher: a batch of {privacy.teacher_batch} was asked for, but a linear teacher sees all records in "
                "every step; leave it out, or choose the kind network"
            )
        if privacy.teacher_steps is not None:
            return privacy
        once = privacy.model_copy(update={"teacher_steps": 1})
        way = _way(calibrate(lambda noise: self.event(once, domain, noise)), domain)
        return privacy.model_copy(update={"teacher_steps": max(_FEWEST_STEPS, round(way * (1 - MOMENTUM) / _RATE))})

    def decided(self, privacy: TaughtPrivacy, domain: Domain) -> Self:
        """The features by the size of the image, and a rate that the noise of all steps together allows."""
        steps, noise = privacy.teacher_steps or 1, privacy.teacher_noise_multiplier or 1.0
        rate = _NETWORK_RATE
        if self.kind == "linear":
            rate = float(f"{_way(noise / steps**0.5, domain) * (1 - MOMENTUM) / steps:.3g}")
        if self._on_patches(domain):
            decided: dict[str, Any] = {"features": "patches", "filters": self._filters()}
        else:
            decided = {"scales": self._scales(domain)}
        return self.model_copy(update=decided | {"learning_rate": self.learning_rate or rate})

    def _on_patches(self, domain: Domain) -> bool:
        """Configs from before there was a choice are of scattering: they all name scales once they are decided."""
        if self.features is not None:
            return self.features == "patches"
        return domain.shape[0] == 3 and self.scales is None and self.directions == _DIRECTIONS

    def _filters(self) -> int:
        if self.scales is not None or self.directions != _DIRECTIONS:
            raise InputError(
                "teacher: scales and directions are settings of scattering, but features=patches was asked for; leave "
                "them out, or set filters"
            )
        return self.filters or _FILTERS

    def _scales(self, domain: Domain) -> int:
        if self.filters is not None or self.mirrored:
            raise InputError(
                "teacher: filters and mirrored are settings of patches, but these images would be looked at by "
                "scattering; leave them out, or pass teacher.features=patches"
            )
        smallest, largest = min(domain.shape[1:]), max(domain.shape[1:])
        wide_enough = smallest >= _SMALLEST_FOR_THREE_SCALES
        if self.scales == 3 and not wide_enough:
            raise InputError(
                f"teacher: scales=3 was asked for, but images of {domain.shape[1]}x{domain.shape[2]} pixels are "
                "too small for them; pass 2, or leave it out"
            )
        return self.scales or (3 if wide_enough and largest > _LARGEST_FOR_TWO_SCALES else 2)

    def released(self) -> dict[str, Any]:
        """What a release says of its teacher, as plain data."""
        of_features: dict[str, Any] = {"scales": self.scales or 2, "directions": self.directions}
        if self.features == "patches":
            of_features = {"filters": self.filters or _FILTERS, "mirrored": self.mirrored}
        return {"kind": self.kind, "features": self.features or "scattering", "width": self.width, **of_features}

    def costs(self, privacy: TaughtPrivacy, domain: Domain) -> Costs:
        """What the teacher adds: features of all records, kept in half precision, and its steps."""
        records, steps = domain.nominal_records, privacy.teacher_steps or 1
        features, seconds, seconds_on_gpu = self._costs_of_features(domain)
        products = records * features * (domain.classes or 1)
        if self.kind == "network":
            products = (privacy.teacher_batch or 1) * features * 18 * self.width
        return Costs(
            steps=steps,
            memory_bytes=2 * records * features + 2**28,
            seconds=seconds + steps * (products * 1.2e-10 + 1e-3),
            seconds_on_gpu=seconds_on_gpu + steps * (products * 5e-13 + 1e-3),
        )

    def _costs_of_features(self, domain: Domain) -> tuple[int, float, float]:
        """How many an image has, and the seconds that those of all records take on two cores and on a graphics card."""
        records, (channels, height, width) = domain.nominal_records, domain.shape
        if not self._on_patches(domain):
            seconds = records * 2.2e-3 * channels * height * width / 1024
            return 81 * channels * (height * width) // 16, seconds, records * 2e-5 * channels
        filters = self.filters or _FILTERS
        products = records * filters * 36 * channels * height * width * (2 if self.mirrored else 1)
        learning = _LEARNING_FILTERS * (0.5 + filters / 512) * channels / 3
        places = max(2, round(height / 8)) * max(2, round(width / 8))
        return 2 * filters * places, learning + products * 6e-11, learning + products * 2e-13


def _way(one_shot: float, domain: Domain) -> float:
    """How far a linear teacher goes: steps * rate / (1 - momentum).

    A step moves a weight by rate / (1 - momentum) times its noise over the declared records, and independent noise adds
    up by the square root of the steps. The way is so long that this carries a weight a tenth.
    """
    return min(_LONGEST_WAY, _FURTHEST_STRAY * domain.nominal_units / one_shot)


class TaughtConfig(MethodConfig):
    """The config of a method that may have a teacher: of every central method that draws classes."""

    privacy: TaughtPrivacy = TaughtPrivacy()
    teacher: PrivateTeacherConfig = PrivateTeacherConfig()


Anything = TypeVar("Anything", bound=MethodConfig)


def has_teacher(config: MethodConfig) -> bool:
    """Whether a config gives a share to a teacher."""
    return isinstance(config, TaughtConfig) and config.privacy.teacher_share > 0


def with_teacher(config: Anything, domain: Domain, budget: Budget) -> tuple[Anything, tuple[Event, ...]]:
    """The config with the teacher's noise, steps and settings filled in, and its event; nothing where it has no share.

    Done twice it changes nothing more: what is decided stays.
    """
    if not isinstance(config, TaughtConfig):
        return config, ()
    if not config.privacy.teacher_share:
        check_no_teacher_set(config)
        return config, ()
    if domain.classes is None:
        raise InputError(
            f"teacher: privacy.teacher_share={config.privacy.teacher_share:g}, but the data are declared without "
            "labels, so there is nothing to teach; leave it out"
        )
    teacher, part = config.teacher, Budget(budget.epsilon * config.privacy.teacher_share, budget.delta)

    def calibrate(event: Callable[[float], Event]) -> float:
        return accounting.calibrate(lambda noise: [event(noise)], part)

    privacy = teacher.with_steps(config.privacy, domain, calibrate)
    noise = privacy.teacher_noise_multiplier or calibrate(lambda noise: teacher.event(privacy, domain, noise))
    privacy = privacy.model_copy(update={"teacher_noise_multiplier": noise})
    decided = config.model_copy(update={"privacy": privacy, "teacher": teacher.decided(privacy, domain)})
    return decided, (teacher.event(privacy, domain, noise),)


def check_no_teacher_set(config: TaughtConfig) -> None:
    """Refuse settings of a teacher that there is not: they would be recorded and mean nothing."""
    privacy = config.privacy
    given = [name for name in ("noise_multiplier", "steps", "batch") if getattr(privacy, f"teacher_{name}") is not None]
    named = f"privacy.teacher_{given[0]}" if given else "teacher"
    if given or config.teacher != PrivateTeacherConfig():
        raise InputError(
            f"{named}: set, but no share is given to a teacher; pass privacy.teacher_share, or leave it out"
        )


def teacher_costs(config: MethodConfig, domain: Domain, costs: Costs) -> Costs:
    """The costs of a method with those of its teacher, where it has one; its steps come before those that are told."""
    if not isinstance(config, TaughtConfig) or not config.privacy.teacher_share:
        return costs
    more = config.teacher.costs(config.privacy, domain)
    return replace(
        costs,
        memory_bytes=max(costs.memory_bytes, more.memory_bytes),  # one is trained after the other
        seconds=costs.seconds + more.seconds,
        seconds_on_gpu=costs.seconds_on_gpu + more.seconds_on_gpu,
    )
