"""Units of several rows: their gradients are summed, then measured and clipped once, whatever the layers are."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients, shaped
from understudy.engines.records import Examples
from understudy.errors import AbortedRun, InputError
from understudy.models.unet import UNet
from understudy.privacy.events import PoissonSampling
from understudy.privacy.randomness.streams import Randomness

from ...helpers.cases import RECORDS
from ...helpers.data import tiny_data, with_labels
from .networks import Mixed, clip_slowly, fast_sum, mixed_inputs, quadratic, rows_one_at_a_time, units_one_at_a_time
from .steps import ALMOST_NONE, BATCH, CLIP, NOISE, STILL, Watched, close, everybody, make_event, make_step

FALSE_ALARM = 1e-6
UNITS = 3


def agree(network: nn.Module, inputs: tuple[Tensor, ...], rows: int, tolerance: float = 1e-9) -> None:
    """Norms and sums of units, without a clip and with one that some of them feel."""
    expected = units_one_at_a_time(network, inputs, rows)
    lengths = expected.norm(dim=1)
    for clip in (math.inf, float(lengths.median())):
        found, norms = fast_sum(network, inputs, clip, rows=rows)
        wanted = expected if clip == math.inf else clip_slowly(expected, clip)
        assert norms.shape == (UNITS,)
        assert torch.allclose(norms, lengths, rtol=1e-6)
        assert float((found - wanted.sum(dim=0)).norm()) <= tolerance * float(wanted.norm(dim=1).sum())


# The gradients


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
        (nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), (3, 7, 6)),
        (nn.Conv2d(8, 16, 3, stride=2, padding=1), (8, 3, 3)),  # few places: Gram matrices
        (nn.Conv2d(8, 4, 5), (8, 5, 5)),  # one place
        (nn.Conv2d(4, 6, 3, dilation=2, groups=2), (4, 7, 7)),
        (nn.Conv2d(5, 4, 1), (5, 3, 3)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 4, 4)),
        (nn.Linear(6, 5), (6,)),
        (nn.Linear(6, 5, bias=False), (4, 6)),
        (nn.GroupNorm(2, 6), (6, 3, 4)),
        (nn.LayerNorm((4, 5)), (3, 4, 5)),
    ],
    ids=repr,
)
def test_every_kind_of_layer_sums_the_rows_of_a_unit(layer, shape, rows):
    agree(copy.deepcopy(layer).double(), (torch.randn(UNITS * rows, *shape, dtype=torch.float64),), rows)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("padding", [None, 0])
def test_rows_of_an_embedding_that_meet_in_one_place_add_up(rows, padding):
    layer = nn.Embedding(3, 4, padding_idx=padding).double()
    indices = torch.randint(0, 3, (UNITS * rows, 2))
    indices[:, 1] = 1  # none whose gradient is padding alone
    agree(layer, (indices,), rows)
    agree(layer, (torch.ones(UNITS * rows, dtype=torch.long),), rows)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_planes_of_one_value_each(rows, bias):
    layer = nn.Conv2d(3, 5, 4, stride=2, padding=1, bias=bias).double()
    planes = torch.randn(UNITS * rows, 3, 1, 1, dtype=torch.float64)
    agree(layer, (planes.expand(-1, -1, 6, 7),), rows)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_network_of_all_kinds_of_layers(rows):
    agree(Mixed().double(), mixed_inputs(UNITS * rows), rows)


def unet_inputs(count: int, side: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    images = torch.randn(count, 3, side, side + 1, dtype=torch.float64)
    return images, 30 * torch.randn(count, dtype=torch.float64), torch.randint(0, 5, (count,))


def unet() -> UNet:
    return UNet(3, 5, (8, 16), 1).double()


@pytest.mark.parametrize("rows", [1, 4])
def test_the_u_net(rows):
    agree(unet(), unet_inputs(UNITS * rows), rows)


def opacus_units(network: nn.Module, inputs: tuple[Tensor, ...], rows: int) -> dict[str, Tensor]:
    """The gradients of units by Opacus: those of its rows, one by one, summed over each unit."""
    from opacus.grad_sample import GradSampleModule

    wrapped = GradSampleModule(copy.deepcopy(network), loss_reduction="sum")
    quadratic(wrapped(*inputs)).sum().backward()
    parameters = wrapped._module.named_parameters()
    return {name: parameter.grad_sample.unflatten(0, (-1, rows)).sum(dim=1) for name, parameter in parameters}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("network", "given"), [(Mixed().double(), mixed_inputs), (unet(), unet_inputs)], ids=["all kinds", "U-Net"]
)
def test_sums_equal_those_of_opacus_on_all_rows(network, given, rows):
    """Clipping is done here, after the sum over a unit: Opacus itself clips rows."""
    inputs = given(UNITS * rows)
    units = opacus_units(network, inputs, rows)
    lengths = torch.stack([each.flatten(1).norm(dim=1) for each in units.values()]).norm(dim=0)
    clip = float(lengths.median())
    found, norms = fast_sum(network, inputs, clip, rows=rows)
    assert torch.allclose(norms, lengths, rtol=1e-6)
    flat = FlatParameters(copy.deepcopy(network))
    factors = (clip / lengths).clamp(max=1)
    for name, each in units.items():
        expected = torch.einsum("n,n...->...", factors, each)
        assert torch.allclose(shaped(found[flat.span(name)], expected.shape), expected, atol=1e-8 * clip)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("alike", [True, False])
def test_no_unit_adds_more_than_the_bound_in_any_precision(precision, alike):
    """Also one whose rows almost cancel, so that rounding each of them counts for more than their sum."""
    torch.manual_seed(4)
    network, rows = Mixed(), 4
    images, labels = mixed_inputs(rows, torch.float32)
    images = images[:1].repeat(rows, 1, 1, 1) if alike else images
    signs = torch.tensor([1.0, -0.98, 1.0, -1.01])

    def cancelling(outputs: Tensor) -> Tensor:
        return outputs.float() * signs

    for scale in (1.0, 30.0):
        given = (scale * images, labels[:1].repeat(rows, 1))
        clip = 0.5 * float(fast_sum(network, given, precision=precision, loss=cancelling, rows=rows)[1])
        added, _ = fast_sum(network, given, clip, precision, cancelling, rows)
        assert 0 < float(added.norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("network", [Mixed(), UNet(2, 5, (8,), 1)], ids=["all kinds", "U-Net"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("row", [2, 3])
def test_a_broken_row_takes_out_its_own_unit_alone(network, value, row):
    images, labels = mixed_inputs(2 * UNITS, torch.float32)
    inputs = (images, labels) if isinstance(network, Mixed) else (images, torch.randn(2 * UNITS), labels[:, 0])
    broken = (images.clone(), *inputs[1:])
    broken[0][row, 1, 3, 3] = value
    found, norms = fast_sum(network, broken, 0.3, rows=2)
    assert norms.isnan().tolist() == [False, True, False]
    others = torch.arange(2 * UNITS) // 2 != 1
    expected, whole = fast_sum(network, tuple(part[others] for part in inputs), 0.3, rows=2)
    assert torch.allclose(norms[[0, 2]], whole, rtol=1e-5)
    assert close(found, expected, 1e-5)


@pytest.mark.parametrize("network", [Mixed(), UNet(2, 5, (8,), 1)], ids=["all kinds", "U-Net"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_loss_takes_out_its_own_unit_alone(network, value):
    """What is not finite comes back through all layers; nothing of it may be left in the sum, as nothing times NaN."""
    images, labels = mixed_inputs(2 * UNITS, torch.float32)
    inputs = (images, labels) if isinstance(network, Mixed) else (images, torch.randn(2 * UNITS), labels[:, 0])
    factors = torch.ones(2 * UNITS)
    factors[3] = value
    found, norms = fast_sum(network, inputs, 0.3, loss=lambda outputs: factors * quadratic(outputs), rows=2)
    assert norms.isnan().tolist() == [False, True, False]
    others = torch.arange(2 * UNITS) // 2 != 1
    assert close(found, fast_sum(network, tuple(part[others] for part in inputs), 0.3, rows=2)[0], 1e-5)


# The step


def drawn_rows(rows: int) -> Any:
    """An objective that shows ``rows`` scaled copies of an example, which pull in different directions."""
    scales, pulls = torch.linspace(0.5, 2.0, rows), torch.linspace(-0.4, 1.0, rows)

    def objective(examples: Examples, random: torch.Generator) -> Any:
        units = len(examples.images)
        images = examples.images.repeat_interleave(rows, dim=0) * scales.repeat(units)[:, None, None, None]
        return (images,), lambda outputs: pulls.repeat(units) * outputs.square().sum(dim=1)

    return objective


def small_network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5))


def step_of(folder: Path, rows: int, data: Any = None, **changes: Any) -> Watched:
    network = changes.pop("network", None) or small_network()
    settings = {"event": make_event(noise_multiplier=ALMOST_NONE), **STILL, **changes}
    objective = settings.pop("objective", drawn_rows(rows))
    return make_step(folder, data, network=network, objective=objective, rows=rows, companions=None, **settings)


def exact_sum(watched: Watched, rows: int) -> Tensor:
    """One row at a time, summed by unit, clipped, summed."""
    images = torch.cat([some.images[some.present] for some in watched.shown]).double()
    scales, pulls = torch.linspace(0.5, 2.0, rows).double(), torch.linspace(-0.4, 1.0, rows).double()
    units = torch.zeros(len(images), FlatParameters(copy.deepcopy(watched.network)).values.numel()).double()
    for scale, pull in zip(scales, pulls, strict=True):
        units += pull * rows_one_at_a_time(watched.network, (scale * images,), lambda out: out.square().sum(dim=1))
    return clip_slowly(units, CLIP).sum(dim=0)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("micro_batch", [1, 6, 2000])
def test_a_step_sums_units_that_were_clipped_once_however_it_is_cut(tmp_path, rows, micro_batch):
    """Micro-batches of 6 rows could not hold whole units of 4, so they hold one; those of 1 row hold one as well."""
    settings = everybody(RECORDS, noise_multiplier=ALMOST_NONE)
    watched = step_of(tmp_path, rows, runtime={"micro_batch": micro_batch}, **settings)
    watched.take()
    most = max(1, micro_batch // rows)
    assert sum(int(some.present.sum()) for some in watched.shown) == RECORDS
    assert all(len(some.images) <= most for some in watched.shown)
    assert close(watched.sums[0], exact_sum(watched, rows))


def pulled(*pulls: float) -> Any:
    """An objective whose rows are the same image, each with its own weight in the loss."""

    def objective(examples: Examples, random: torch.Generator) -> Any:
        images, weights = examples.images.repeat_interleave(len(pulls), dim=0), torch.tensor(pulls)
        return (images,), lambda outputs: weights.repeat(len(examples.images)) * outputs.square().sum(dim=1)

    return objective


def sum_of_one(folder: Path, *pulls: float) -> Tensor:
    settings = everybody(RECORDS, noise_multiplier=ALMOST_NONE)
    watched = step_of(folder, len(pulls), with_labels([0]), objective=pulled(*pulls), **settings)
    watched.take()
    return watched.sums[0]


def test_opposite_rows_of_a_unit_cancel_before_the_clip(tmp_path):
    """Clipped each for itself, a long and a longer row would both end at C and cancel where they must not."""
    assert float(sum_of_one(tmp_path / "whole", 50.0, -50.0).norm()) < 1e-4 * CLIP
    left = sum_of_one(tmp_path / "part", 100.0, -50.0)
    assert float(left.norm()) == pytest.approx(CLIP, rel=1e-3)


def test_equal_rows_of_a_unit_are_clipped_to_the_bound_together(tmp_path):
    assert float(sum_of_one(tmp_path, 50.0, 50.0, 50.0, 50.0).norm()) == pytest.approx(CLIP, rel=1e-3)


@pytest.mark.parametrize("rows", [1, 4])
def test_one_more_unit_moves_the_exact_sum_by_at_most_the_bound(tmp_path, rows):
    sums = []
    for labels in ([0, 1, 2], [0, 1, 2, 1]):
        watched = step_of(
            tmp_path / str(len(labels)), rows, with_labels(labels), objective=pulled(*[20.0] * rows),
            **everybody(RECORDS, noise_multiplier=ALMOST_NONE),
        )  # fmt: skip
        watched.take()
        sums.append(watched.sums[0])
    assert 0.9 * CLIP < float((sums[1] - sums[0]).norm()) <= CLIP * (1 + 1e-5)


@pytest.mark.parametrize("micro_batch", [4, 2000])
def test_noise_is_added_once_however_many_micro_batches_there_are(tmp_path, micro_batch):
    """Two sums of the same units differ by the noise alone; chi-square, false-alarm rate 1e-6."""
    units = tiny_data()
    settings = everybody(RECORDS, noise_multiplier=NOISE)
    watched = step_of(tmp_path, 4, units, runtime={"micro_batch": micro_batch}, **settings)
    for _ in range(2):
        watched.take()
    noise = (watched.sums[0] - watched.sums[1]) / (math.sqrt(2) * CLIP * NOISE)
    law = stats.chi2(noise.numel())
    assert law.ppf(FALSE_ALARM / 2) < float(noise.square().sum()) < law.isf(FALSE_ALARM / 2)
    assert len(watched.sums) == watched.run.ledger.events()[0].executed == 2


def test_the_divisor_and_the_rate_count_units_and_not_rows(tmp_path):
    watched = step_of(tmp_path, 4)
    update = watched.take()
    assert float((update - watched.sums[0] / BATCH).abs().max()) < 1e-7
    assert watched.run.ledger.events()[0].sampling == PoissonSampling(rate=BATCH / RECORDS)


def test_diagnostics_and_broken_rows_are_counted_by_unit(tmp_path):
    """One broken row in a unit of four, in one unit of forty: a share of 1/40, above the limit of 1/100."""

    def objective(examples: Examples, random: torch.Generator) -> Any:
        inputs, loss = pulled(1.0, 1.0, 1.0, 1.0)(examples, random)
        marked = inputs[0].clone()
        marked[::4][torch.isclose(examples.images.flatten(1).sum(dim=1), first)] = math.nan
        return (marked,), loss

    data = tiny_data()
    first = (torch.from_numpy(data.images[0]).float() / 255).sum()
    watched = step_of(tmp_path, 4, data, objective=objective, **everybody(RECORDS, noise_multiplier=ALMOST_NONE))
    watched.take()
    assert torch.isfinite(watched.sums[0]).all()
    with pytest.raises(AbortedRun, match="more than 1% of the private rows"):
        watched.step.diagnostics()


def test_norms_for_lookers_on_are_those_of_units(tmp_path):
    watched = step_of(tmp_path, 2, objective=pulled(1.0, 1.0))
    alone = step_of(tmp_path / "alone", 1, objective=pulled(1.0), network=copy.deepcopy(watched.network))
    places = torch.tensor([3, 0])
    assert torch.allclose(watched.step.norms_private(places), 2 * alone.step.norms_private(places), rtol=1e-4)


class Noted(Randomness):
    """Randomness that keeps the generators that nobody can guess."""

    def secret_generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        self.secret = super().secret_generator(device)
        return self.secret


def test_the_chance_in_what_units_add_is_secret(tmp_path):
    """It is dealt out by place, so one unit more moves everybody's; a seed of 32 bits could be found by trying all."""
    given: list[torch.Generator] = []

    def objective(examples: Examples, random: torch.Generator) -> Any:
        given.append(random)
        return pulled(1.0, 1.0)(examples, random)

    source = Noted()
    step_of(tmp_path, 2, objective=objective, randomness=source).take()
    assert all(random is source.secret for random in given)
    assert len(given) > 1


def test_a_unit_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="rows: 0; show at least one"):
        step_of(tmp_path, 0)


def test_a_network_that_mixes_the_rows_of_different_units_is_refused():
    """As it is one that mixes any rows: what a unit adds must follow its own rows alone."""

    class Neighbours(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values + values.roll(2, dims=0)

    network = nn.Sequential(nn.Linear(3, 3), Neighbours())
    engine = PerExampleGradients(network, FlatParameters(network), rows=2)
    with pytest.raises(InputError, match="mixes the examples of a batch"):
        engine.check_examples_apart((torch.randn(4, 3),), (torch.randn(4, 3),))
