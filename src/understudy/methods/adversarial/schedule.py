"""How many discriminator steps are taken for each generator step: a fixed number, or more whenever it falls behind.

The adaptive schedule starts low and climbs a ladder. Before each generator step the discriminator's accuracy on fakes
is added to an exponential moving average; when that average is below a threshold and the present number has had its
grace period of generator steps, the next rung is taken. It never climbs down.

Privacy: it reads the accuracy on generated images of a discriminator that is differentially private already, so it is
post-processing.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from understudy.configs import Config, Count, Fraction, Share


class ScheduleConfig(Config):
    """The adaptive schedule, with the values of the paper."""

    threshold: Fraction = 0.6  # d: below this average accuracy, climb
    decay: Share = 0.99  # beta
    grace: Count = 200  # generator steps on a rung at least: 2 / (1 - beta)
    ladder: Annotated[tuple[Count, ...], Field(max_length=100)] = (1, 2, 5, 10, 20, 50, 100, 200, 500)

    @model_validator(mode="after")
    def _climbs(self) -> ScheduleConfig:
        if not self.ladder or list(self.ladder) != sorted(set(self.ladder)):
            raise ValueError(f"ladder: {list(self.ladder)} does not climb; pass for example [1, 2, 5, 10]")
        return self


class StepSchedule:
    """Counts discriminator steps and says when a generator step is due; one rung is a fixed number of steps."""

    def __init__(self, settings: ScheduleConfig) -> None:
        self._settings = settings
        self._rung = 0
        self._since_generator = 0  # discriminator steps since the last generator step
        self._on_rung = 0  # generator steps since the last climb
        self.generator_steps = 0
        self.average: float | None = None  # of the accuracy on fakes; the first observation starts it

    @classmethod
    def fixed(cls, steps: int) -> StepSchedule:
        """The same number of discriminator steps for every generator step."""
        return cls(ScheduleConfig(ladder=(steps,)))

    @property
    def adaptive(self) -> bool:
        """Whether observations can change anything."""
        return len(self._settings.ladder) > 1

    @property
    def steps(self) -> int:
        """Discriminator steps for each generator step, now."""
        return self._settings.ladder[self._rung]

    def count_discriminator_step(self) -> bool:
        """Count one discriminator step; true when a generator step is due after it."""
        self._since_generator += 1
        return self._since_generator >= self.steps

    def count_generator_step(self, accuracy: float | None = None) -> bool:
        """Count one generator step, with the accuracy on fakes from just before it; true when the ladder was climbed.

        A fixed schedule needs no accuracy.
        """
        self._since_generator = 0
        self.generator_steps += 1
        self._on_rung += 1
        if accuracy is None:
            return False
        decay = self._settings.decay
        self.average = accuracy if self.average is None else decay * self.average + (1 - decay) * accuracy
        patient = self._on_rung < self._settings.grace
        if patient or self.average >= self._settings.threshold or self._rung + 1 == len(self._settings.ladder):
            return False
        self._rung, self._on_rung = self._rung + 1, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """All that must survive an interruption."""
        return {
            "rung": self._rung,
            "since_generator": self._since_generator,
            "on_rung": self._on_rung,
            "generator_steps": self.generator_steps,
            "average": self.average,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue where a checkpoint stood."""
        self._rung, self._since_generator = int(state["rung"]), int(state["since_generator"])
        self._on_rung, self.generator_steps = int(state["on_rung"]), int(state["generator_steps"])
        self.average = state["average"]
