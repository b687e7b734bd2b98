"""What is said before a run spends anything: how long it will take here, and what its owner should know first.

The one place for what methods were measured on: whoever measures one on larger images adds a row to ``MEASURED``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.methods.choice import Choice
    from understudy.privacy.plan import Plan

Shape = tuple[int, int, int]  # channels, height, width
USUAL: Shape = (1, 28, 28)
MEASURED: Mapping[str, Shape] = MappingProxyType(
    {"dp-diffusion": (3, 32, 32), "dp-merf": (3, 32, 32)}
)  # by method: the largest images with committed results, if not usual
LONG_SECONDS = 3600.0  # on a processor; a longer run is begun only if its owner agrees
FEWEST_UNITS = 500
MOST_CLASSES = 100


@dataclass(frozen=True)
class Consent:
    """Whether a long run may begin: agreed to beforehand, or by an answer at a terminal."""

    agreed: bool = False
    at_terminal: Callable[[], bool] = lambda: sys.stdin.isatty() and sys.stderr.isatty()
    answer: Callable[[], str] = input

    def require(self, method: str, seconds: float) -> None:
        """Refuse where nobody has agreed and nobody can be asked."""
        if not self.agreed and not self.at_terminal():
            raise InputError(
                f"train: {method} would take about {duration(seconds)} on this CPU; pass --yes to begin all the same, "
                "or look for less with `understudy plan` (a preset, fewer steps, --device cuda)"
            )

    def obtain(self) -> None:
        """Ask, unless it was agreed beforehand; nothing was spent so far."""
        if self.agreed:
            return
        print("Begin? [y/N] ", end="", file=sys.stderr, flush=True)
        try:
            answer = self.answer()
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise InputError("train: not begun, and nothing was spent; `understudy plan` shows what would take less")


def announce(plan: Plan, consent: Consent, say: Callable[[str], None]) -> None:
    """Say what a run will take on the device in use and what to be wary of; ask before a long one on a processor."""
    from understudy.devices import choose_device, describe_device

    device = choose_device(plan.config.runtime.device)
    on_cpu = device.type == "cpu"
    seconds = plan.seconds if on_cpu else plan.seconds_on_gpu
    is_long = on_cpu and seconds > LONG_SECONDS
    if is_long:
        consent.require(plan.method, seconds)
    where = "on this CPU" if on_cpu else f"on {describe_device(device)}"
    say(f"{plan.method}: {plan.steps:,} steps, roughly {duration(seconds)} {where}")
    for kind, sentence in cautions(plan):
        say(f"{kind}: {sentence}")
    if is_long:
        consent.obtain()


def introduce(choice: Choice) -> str:
    """Two sentences: what ``auto`` chose and why; what to expect, and how long it takes."""
    candidate, form = choice.chosen.candidate, form_in_words(choice.plan.domain.shape)
    parts = [f"preset {candidate.preset}"] if candidate.preset else []
    parts += [f"{candidate.steps:,} steps"] if candidate.stands_for and candidate.steps else []
    parts += [f"{share:g} of epsilon for its {part}" for part, share in candidate.shares.items()]
    settings = f" ({', '.join(parts)})" if parts else ""
    return f"auto chooses {candidate.method}{settings} for images of {form}: {_why(choice)}. {_expected(choice)}."


def _why(choice: Choice) -> str:
    """In which runs it did best."""
    runs = choice.chosen.runs
    signals, sets = [run.signal for run in runs], sorted({run.dataset for run in runs})
    counted = f"{len(runs)} run{'s' if len(runs) > 1 else ''} on {' and '.join(sets)}"
    between = f"{min(signals):,.0f}" + (f" to {max(signals):,.0f}" if max(signals) > min(signals) else "")
    signal = f"epsilon times {'people' if choice.plan.domain.nominal_people else 'records'} per class is"
    did_best = "it did best" if choice.chosen.candidate.stands_for is None else "its settings for grey images did best"
    where = counted if choice.near else f"the nearest, {counted}"
    why = f"of what fits {did_best} in {where} ({signal} {between} there, {choice.signal:,.0f} here)"
    return why if choice.near else f"nothing like your data was measured that fits, and {why}"


def _expected(choice: Choice) -> str:
    """What its images will be good for and how long one waits; a figure of grey images is no promise for colour."""
    low, high = (max(0, round(100 * share)) for share in choice.chosen.recovered)
    share = f"{low} %" if low == high else f"{low} to {high} %"
    where = "on this CPU" if choice.on_cpu else "on this graphics card"
    wait, domain = f"wait about {duration(choice.seconds)} {where}", choice.plan.domain
    if domain.shape[0] not in {run.channels for run in choice.chosen.runs}:
        return (
            "Nothing that it knows was measured in colour: there, in grey, a classifier trained on its images recovered"
            f" {share} of what real images give, so expect less here, and {wait}"
        )
    labels = "" if domain.labelled else ", where there are labels,"
    return (
        f"Expect a classifier trained on its images to recover {share} of what real images give{labels} if yours are "
        f"as simple as those, far less where a detail tells classes apart, and to {wait}"
    )


def seconds_of(text: str) -> float:
    """``90s``, ``20m``, ``2h`` or ``1h30m`` in seconds."""
    match = re.fullmatch(r"(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,7})s)?", text.strip().lower())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if total == 0:
        raise InputError(f"time: {text!r} is no time to wait; pass for example 90s, 20m or 1h30m")
    return float(total)


def usual_delta_in_words(plan: Plan) -> str:
    """Which delta was taken, where nobody named one."""
    domain = plan.domain
    return (
        f"delta: {plan.budget.delta:g}, a tenth of one over the declared {domain.nominal_units:,} "
        f"{'records' if domain.nominal_people is None else 'people'} and at most 1e-05, since --delta was left out"
    )


def cautions(plan: Plan) -> list[tuple[str, str]]:
    """What its owner should know first, each a ``warning`` or a ``remark``."""
    remarks = [("warning" if remark.startswith("delta") else "remark", remark) for remark in plan.remarks]
    return remarks + [("warning", sentence) for sentence in warnings(plan)]


def warnings(plan: Plan) -> tuple[str, ...]:
    """What speaks against a good result, by public facts alone; what concerns delta is among the plan's remarks."""
    return tuple(_warnings(plan))


def _warnings(plan: Plan) -> Iterator[str]:
    units, several = _units(plan)
    if plan.private and units < FEWEST_UNITS:
        yield (
            f"{several}: {units} are declared; below {FEWEST_UNITS} the noise outweighs what they have in common, so "
            "expect images of little use"
        )
    classes = plan.domain.classes or 0
    if classes > MOST_CLASSES:
        yield (
            f"classes: {classes} share {plan.domain.nominal_records:,} records; above {MOST_CLASSES} hardly any keeps "
            "a look of its own, so merge some, or leave labels out with --declare unlabelled=true"
        )
    shape, measured = plan.domain.shape, MEASURED.get(plan.method, USUAL)
    if prod(shape) > prod(measured):
        yield (
            f"images: {_words(shape)} is more than {plan.method} was measured on ({_words(measured)}); try it on "
            f"public images of that shape first, or bring them down with --shape {_words(measured)}"
        )


def _units(plan: Plan) -> tuple[int, str]:
    """How many there are of what is protected, and what they are called."""
    domain = plan.domain
    if domain.nominal_clients is not None and any(event.unit == "client" for event in plan.events):
        return domain.nominal_clients, "clients"
    return domain.nominal_units, "records" if domain.nominal_people is None else "people"


def _words(shape: Shape) -> str:
    return "x".join(str(side) for side in shape)


def form_in_words(shape: Shape) -> str:
    """Size and colour of images."""
    channels, height, width = shape
    return f"{height}x{width} in {'grey' if channels == 1 else 'colour'}"


def brought_in_words(shape: str) -> str:
    """What is said where pictures get the usual shape because nobody named one."""
    channels, height, width = (int(side) for side in shape.split("x"))
    form = form_in_words((channels, height, width))
    return (
        f"pictures are brought to {form}, the usual shape, since --shape was left out; pass --shape 1x28x28 where they "
        "are grey, which takes less time"
    )


def duration(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 90:
        return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"
