"""Does one changed record reach anything but its own critic, or its own gradient? Looked for bit by bit.

    python benchmarks/independence.py                                  # graphics card, at the size of the presets
    python benchmarks/independence.py --device cpu --critics 12 --batch 8 --steps 3 --width 8

Two runs that differ in one record are carried out with the same randomness. In the critic bank every byte of every
other critic must be the same after warm start and training, and so must every answer that another critic gives. In a
private step the bound of every other unit's gradient norm, which decides how it is clipped, must be the same, where one
is another and where one is missing, so that all behind it stand one place further ahead: in a pass of the same size,
but for a discriminator on a processor, whose pass holds as many as were drawn. So must the features that a teacher has
of every other image, where one is missing. Each comparison is made beside one of two runs on equal records: where these
differ already, kernels do not repeat themselves, and the row says so. Writes
``benchmarks/results/independence[-cpu].json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from record import command_line, current_commit, device_name
from understudy.engines.critics.bank import AdamConfig, CriticBank, CriticBankConfig, CriticBankOptions
from understudy.engines.critics.subsets import PrivateRecords, SubsetTable
from understudy.engines.critics.warm_start import WarmStartConfig, warm_start
from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients
from understudy.engines.teacher.patches import learn_filters
from understudy.engines.teacher.training import features_in_chunks
from understudy.models.critic import CriticBatch, CriticConfig
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig
from understudy.models.generator import TeacherModelConfig
from understudy.models.patches import Patches
from understudy.models.perceptron import PerceptronDiscriminator
from understudy.models.teacher import fixed_features
from understudy.models.unet import GROUPS, UNet

SHAPE, COLOUR, CLASSES = (1, 28, 28), (3, 32, 32), 10
DRAWS = 4  # of a unit of a denoiser
PRECISIONS = ("fp32", "tf32", "bf16")
ONE_MORE, LONGER_PASS = ", one more", ", one more in a longer pass"
Row = dict[str, Any]
State = dict[str, Tensor]  # each tensor has one row for each critic or example


def main() -> int:
    options = parse()
    rows = [row for precision in PRECISIONS for row in look(precision, options)]
    suffix = "" if options.device == "cuda" else "-cpu"
    path = options.json or Path(__file__).parent / "results" / f"independence{suffix}.json"
    body = {
        "device": device_name(torch.device(options.device)),
        "command": command_line(("--json", "--commit")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
        "rows": rows,
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"wrote {path}")
    return int(any(row["others_changed"] for row in rows if row["repeats_itself"]))


def look(precision: str, options: argparse.Namespace) -> list[Row]:
    """All comparisons at one precision."""
    features = [
        compare(f"a teacher's features of {kind}, one more, {precision}", partial(features_of, kind, options))
        for kind in (("scattering", "patches") if precision == "fp32" else ())  # which knows no other
    ]
    return [
        *features,
        compare(f"critics trained in blocks, {precision}", partial(trained, precision, options)),
        compare(f"critics trained scattered, {precision}", partial(trained, precision, options, spread=True)),
        compare(f"warm start, {precision}", partial(warmed, precision, options)),
        compare(f"answers of critics, {precision}", partial(answers, precision, options)),
        *(
            compare(
                f"norms of per-example gradients{of}{told}, {precision}", partial(norms, precision, options, make, more)
            )
            for of, make in DISCRIMINATORS.items()
            for more, told in ((False, ""), (True, ONE_MORE if options.device == "cuda" else LONGER_PASS))
        ),
        *(
            compare(
                f"norms of a denoiser's units{told}, {precision}", partial(denoiser_norms, precision, options, more)
            )
            for more, told in ((False, ""), (True, ONE_MORE))
        ),
    ]


def compare(what: str, act: Callable[[int | None], State]) -> Row:
    """Two runs on equal records, then one in which the record of one critic (or one example) is another."""
    changed = 1
    before, again, after = act(None), act(None), act(changed)
    others = torch.arange(len(next(iter(before.values())))) != changed
    row = {
        "what": what,
        "rows": int(others.sum()) + 1,
        "repeats_itself": differing(before, again, torch.ones_like(others)) == 0,
        "others_changed": differing(before, after, others),
        "own_changed": differing(before, after, ~others) > 0,
    }
    print(json.dumps(row), flush=True)
    return row


def differing(first: State, second: State, rows: Tensor) -> int:
    """How many of these rows differ in any bit of any tensor."""
    device = next(iter(first.values())).device
    rows, found = rows.to(device), torch.zeros(int(rows.sum()), dtype=torch.bool, device=device)
    for name, tensor in first.items():
        one, other = (side[rows].contiguous() for side in (tensor, second[name]))
        one, other = (side.reshape(len(side), -1).view(torch.uint8) for side in (one, other))
        found |= (one != other).any(dim=1)
    return int(found.sum())


# --- critics


def make_bank(precision: str, options: argparse.Namespace, active: Tensor | None = None) -> CriticBank:
    config = CriticBankConfig(
        critic=CriticConfig(shape=SHAPE, classes=CLASSES, width=options.width),
        critics=options.critics,
        adam=AdamConfig(learning_rate=1e-3),
    )
    random = torch.Generator(options.device).manual_seed(5)
    return CriticBank(config, CriticBankOptions(precision=precision), active, options.device, random)


def trained(precision: str, options: argparse.Namespace, changed: int | None, spread: bool = False) -> State:
    """Critics after some steps on a public schedule; one of them may have seen other records."""
    bank, size = make_bank(precision, options), options.batch
    block = max(2, options.critics // 4)
    schedule = [list(range(start, min(start + block, options.critics))) for start in range(0, options.critics, block)]
    if spread:  # every fourth critic, so that rows are gathered and scattered
        schedule = [list(range(start, options.critics, 4)) for start in range(4)]
    random = torch.Generator(options.device).manual_seed(6)
    for _ in range(options.steps):
        for critics in schedule:
            batch = draw_batch(len(critics), size, options, random)
            if changed in critics:
                row = critics.index(changed)
                batch.real_images[row, 0] = 1 - batch.real_images[row, 0]
            bank.train_step(critics if spread else slice(critics[0], critics[-1] + 1), batch)
    return bank.state()


def draw_batch(critics: int, size: int, options: argparse.Namespace, random: torch.Generator) -> CriticBatch:
    def images() -> Tensor:
        return torch.rand(critics, size, *SHAPE, generator=random, device=options.device)

    def labels() -> Tensor:
        return torch.randint(CLASSES, (critics, size), generator=random, device=options.device)

    mix = torch.rand(critics, size, generator=random, device=options.device)
    return CriticBatch(images(), images(), labels(), labels(), mix)


def warmed(precision: str, options: argparse.Namespace, changed: int | None) -> State:
    """Critics after a warm start; one of them may have one record less, and never its only one."""
    records, random = 4 * options.critics, torch.Generator().manual_seed(7)
    images = torch.randint(256, (records, *SHAPE), generator=random, dtype=torch.uint8)
    labels = torch.randint(CLASSES, (records,), generator=random)
    assignment = torch.arange(records) % options.critics
    kept = torch.ones(records, dtype=torch.bool)
    if changed is not None:
        kept[changed] = False
    device = torch.device(options.device)
    table = SubsetTable.from_assignment(assignment[kept].to(device), options.critics)
    held = PrivateRecords(images[kept].to(device), labels[kept].to(device), table)
    bank = make_bank(precision, options, active=table.nonempty)
    config = WarmStartConfig(iterations=options.steps, batch=options.batch, block=max(2, options.critics // 4))
    warm_start(bank, held, config, torch.Generator(options.device).manual_seed(8))
    return bank.state()


def answers(precision: str, options: argparse.Namespace, changed: int | None) -> State:
    """What critics answer to one image each, in an order that mixes them; one of them may be another critic."""
    bank = make_bank(precision, options)
    if changed is not None:
        bank.parameters[changed] += 0.01
    random = torch.Generator(options.device).manual_seed(9)
    images = torch.rand(options.critics, *SHAPE, generator=random, device=options.device)
    labels = torch.randint(CLASSES, (options.critics,), generator=random, device=options.device)
    routing = torch.randperm(options.critics, generator=random, device=options.device)
    found = bank.query(images[routing], labels[routing], routing)
    return {"answers": torch.empty_like(found).index_copy_(0, routing, found)}


# --- per-example gradients


DISCRIMINATORS = {"": DpganDiscriminator, " of a perceptron": PerceptronDiscriminator}


def norms(
    precision: str,
    options: argparse.Namespace,
    make: Callable[[DpganDiscriminatorConfig], torch.nn.Module],
    more: bool,
    changed: int | None = None,
) -> State:
    """The bounds that decide how each example is clipped; one may be another, or with ``more`` be there at all."""
    torch.manual_seed(0)
    config = DpganDiscriminatorConfig(shape=SHAPE, classes=CLASSES, width=max(8, options.width))
    network = make(config).to(options.device)
    used = precision if options.device == "cuda" else "fp32"
    gradients = PerExampleGradients(network, FlatParameters(network), used)
    random, count = torch.Generator(options.device).manual_seed(10), 8 * options.batch
    images = torch.rand(count + 1, *SHAPE, generator=random, device=options.device)
    labels = torch.randint(CLASSES, (count + 1,), generator=random, device=options.device)
    place, missing = 1 if changed is None else changed, changed is None and more
    shown = torch.arange(count, device=options.device)  # the last one stands in for nobody
    if missing:
        last = torch.tensor([count] if options.device == "cuda" else [], dtype=torch.long, device=options.device)
        shown = torch.cat([shown[:place], shown[place + 1 :], last])
    elif changed is not None and not more:
        images[place] = 1 - images[place]
    gradients.refresh()
    found = gradients.norms(
        (images[shown].to(gradients.number_type), labels[shown]),
        lambda logits: torch.nn.functional.softplus(-logits.float().flatten()),
    )
    return {"norms": without_gap(found, place, count) if missing else found}


def without_gap(found: Tensor, place: int, count: int) -> Tensor:
    """As many as there would be with the one that is missing, each where it would stand."""
    return torch.cat([found[:place], found.new_zeros(1), found[place : count - 1]])


def denoiser_norms(precision: str, options: argparse.Namespace, more: bool, changed: int | None = None) -> State:
    """The same of a denoiser with four rows a unit; one unit may be another, or with ``more`` be there at all."""
    torch.manual_seed(0)
    width = max(8, options.width // 2 // GROUPS * GROUPS)
    network = UNet(SHAPE[0], CLASSES, (width, 2 * width), 1).to(options.device)
    used = precision if options.device == "cuda" else "fp32"
    gradients = PerExampleGradients(network, FlatParameters(network), used, rows=DRAWS)
    random, count = torch.Generator(options.device).manual_seed(11), 4 * options.batch
    images = torch.randn(count + 1, DRAWS, *SHAPE, generator=random, device=options.device)
    times = torch.randn(count + 1, DRAWS, generator=random, device=options.device)
    place, missing = 1 if changed is None else changed, changed is None and more
    shown = torch.arange(count, device=options.device)  # the last one stands in for nobody
    if missing:
        shown = torch.cat([shown[:place], shown[place + 1 :], torch.tensor([count], device=options.device)])
    elif changed is not None and not more:
        images[place] *= 0.5
    labels = (shown % CLASSES).repeat_interleave(DRAWS)
    gradients.refresh()
    inputs = (images[shown].flatten(0, 1).to(gradients.number_type), times[shown].flatten(), labels)
    found = gradients.norms(inputs, lambda answers: answers.float().square().mean(dim=(1, 2, 3)))
    return {"norms": without_gap(found, place, count) if missing else found}


# --- features of a teacher


def features_of(kind: str, options: argparse.Namespace, changed: int | None) -> State:
    """As they are kept; one image may be there or not, so that all behind it stand elsewhere, also in other pieces."""
    config = TeacherModelConfig(features=kind, filters=4 * options.width)
    compute = fixed_features(COLOUR, config)
    if isinstance(compute, Patches):
        learn_filters(compute)
    random = torch.Generator(options.device).manual_seed(12)
    images, place = torch.rand(20 * options.batch + 1, *COLOUR, generator=random, device=options.device), 1
    if changed is None:
        images = torch.cat([images[:place], images[place + 1 :]])
    found = features_in_chunks(compute.to(options.device), images)
    if changed is None:
        found = torch.cat([found[:place], torch.zeros_like(found[:1]), found[place:]])
    return {"features": found}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--critics", type=int, default=100)
    parser.add_argument("--width", type=int, default=64, help="of critics and discriminator")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
