"""Private steps to be watched from outside: what they are shown, what they release, and how they move the weights.

An objective sees the examples of each batch, a witness of the ledger every sanitized sum (with almost no noise that is
the sum itself), and the first moment of an Adam with beta_1 = 0 is the update. A rate of one draws every unit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from understudy.configs import MethodConfig
from understudy.data.dataset import ImageDataset
from understudy.distributed import ALONE
from understudy.engines.dpsgd.gradients import FlatParameters
from understudy.engines.dpsgd.sharing import Sharing
from understudy.engines.dpsgd.step import PrivateStep, StepOptions
from understudy.engines.records import Examples
from understudy.methods.config import build_config
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Ledger, NoLedger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, RECORDS
from ...helpers.data import tiny_data
from .networks import clip_slowly, rows_one_at_a_time

BATCH, CLIP, NOISE = 6, 0.5, 2.0
ALMOST_NONE = 1e-9  # of noise: what is released is the sum
STILL = {"learning_rate": 0.0, "betas": (0.0, 0.999)}  # the weights stay, and the first moment is the update
CPU = torch.device("cpu")


def make_network(kind: str = "labelled") -> DpganDiscriminator:
    classes = None if kind == "unlabelled" else 3
    return DpganDiscriminator(
        DpganDiscriminatorConfig(shape=(3 if kind == "rgb" else 1, 8, 8), classes=classes, width=4)
    )


def make_event(**changes: Any) -> Event:
    given = {"noise_multiplier": NOISE, "count": 50, "sampling": PoissonSampling(rate=BATCH / RECORDS)}
    return Event(sensitivity="C", **{"purpose": "steps", **given, **changes})


def everybody(nominal: int, **changes: Any) -> dict[str, Any]:
    """Settings of a step that draws every unit, however many there are."""
    return {"batch": nominal, "event": make_event(sampling=PoissonSampling(rate=1.0), **changes)}


def make_run(folder: Path, data: ImageDataset, event: Event | None, **runtime: Any) -> Run:
    config = build_config(MethodConfig, {"runtime": {"device": "cpu", **runtime}})
    plan = Plan("test", config, data.domain, BUDGET, () if event is None else (event,), 1.0, 1, 0, 0.0, 0.0)
    folder.mkdir(exist_ok=True)
    return Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(), CPU)


@dataclass
class Public:
    """Companions: bright or dark squares that were drawn once, or are drawn afresh."""

    count: int = BATCH
    fresh: bool = True
    labelled: bool = True
    absent: int = 0  # rows that do not count, behind the others
    shape: tuple[int, int, int] = (1, 8, 8)
    number_type: torch.dtype = torch.float32
    drawn: list[Tensor] = field(default_factory=list)

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor]:
        levels = torch.rand(count, generator=random, device=random.device)
        levels = levels if self.fresh else torch.linspace(0.1, 0.9, self.count, device=random.device).repeat(count)
        self.drawn.append(levels[:count])
        return (levels[:count],)

    def render(self, *drawn: Tensor) -> Examples:
        (levels,) = drawn
        absent = self.absent if len(levels) == self.count else 0
        levels = torch.cat([levels, levels.new_full((absent,), 0.5)])
        images = levels[:, None, None, None].expand(-1, *self.shape).to(self.number_type).contiguous()
        labels = torch.zeros(len(levels), dtype=torch.long, device=levels.device) if self.labelled else None
        present = torch.arange(len(levels), device=levels.device) < len(levels) - absent
        return Examples(images, labels, torch.full_like(levels, -1.0), present)


@dataclass
class Watched:
    """A step with its network, and what can be seen of it from outside."""

    step: PrivateStep
    network: nn.Module
    run: Run
    companions: Public | None
    shown: list[Examples]  # the examples of the steps so far, chunk by chunk
    sums: list[Tensor]  # the sanitized sums

    def take(self) -> Tensor:
        """One step; its update."""
        self.shown.clear()
        self.step.take()
        return self.step.optimizer.state_dict()["first"].clone()

    def exact(self, clip: float | None = CLIP) -> Tensor:
        """The sum of clipped gradients of the examples that were shown, one at a time, by automatic differentiation."""
        total = FlatParameters(copy.deepcopy(self.network)).zeros().double()
        for some in self.shown:
            for row in some.present.nonzero().flatten():
                one = slice(int(row), int(row) + 1)
                inputs = (some.images[one].double(), None if some.labels is None else some.labels[one])
                rows = rows_one_at_a_time(self.network, inputs, lambda out, s=some.signs[one]: softplus(-s * out))
                total += (rows if clip is None else clip_slowly(rows, clip)).sum(dim=0)
        return total


def told_apart(examples: Examples, random: torch.Generator) -> Any:
    """One row of each example: records are to be told from companions."""
    return (examples.images, examples.labels), lambda logits: softplus(-examples.signs * logits)


def make_step(folder: Path, data: ImageDataset | None = None, **changes: Any) -> Watched:
    """A step on a run of its own; ``changes`` are its options and the names below."""
    data = tiny_data() if data is None else data
    network = changes.pop("network", None) or make_network("unlabelled" if data.labels is None else "labelled")
    event = changes.pop("event", make_event())
    device, randomness = changes.pop("device", CPU), changes.pop("randomness", None)
    companions = changes.pop("companions", Public(labelled=data.labels is not None, shape=data.domain.shape))
    runtime, objective = changes.pop("runtime", {}), changes.pop("objective", told_apart)
    team, sharing = changes.pop("team", ALONE), changes.pop("sharing", Sharing())
    options = StepOptions(**{"batch": BATCH, "clip": CLIP, "learning_rate": 1e-3, "betas": (0.5, 0.999), **changes})
    event = event if options.private else None
    run = make_run(folder, data, event, **runtime)
    run.device, run.randomness, run.team = device, randomness or run.randomness, team
    run.ledger = run.ledger if team.leads else NoLedger()
    shown: list[Examples] = []
    sums: list[Tensor] = []
    run.ledger.witness = lambda _, value_dp: sums.append(value_dp.clone())

    def seen(examples: Examples, random: torch.Generator) -> Any:
        shown.append(examples)
        return objective(examples, random)

    step = PrivateStep(run, network.to(device), seen, options, event, companions, sharing=sharing)
    return Watched(step, network, run, companions, shown, sums)


def empty(data: ImageDataset) -> ImageDataset:
    return ImageDataset(data.name, data.domain, data.images[:0], None if data.labels is None else data.labels[:0])


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-3) -> bool:
    return float((found.double() - expected.double()).norm()) < tolerance * float(expected.double().norm())


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.layer(images.flatten(1) - images.flatten(1).mean(dim=0)).flatten()
