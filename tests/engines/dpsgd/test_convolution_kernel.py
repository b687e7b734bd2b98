"""The kernels that form the gradients of 3x3 kernels: as autograd has them, in every precision, one unit at a time."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from understudy.models.unet import UNet

from ...helpers.kernels import DEVICE, kernels, needs_card
from .networks import clip_slowly, fast_sum, quadratic, units_one_at_a_time

# How far products may be off: float32 adds up in another order, TF32 keeps 11 bits of an operand, bfloat16 8.
PRECISIONS = {"fp32": 1e-5, "tf32": 4e-3, "bf16": 1e-5}
ON_CARD_ONLY = {"bf16": [needs_card]}  # the interpreter cannot multiply bfloat16


def float_of(outputs: Tensor) -> Tensor:
    return quadratic(outputs.float())


pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, in the interpreter


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> Any:
    return kernels("engines.dpsgd.convolution_kernel", monkeypatch)


def sides(
    units: int, rows: int, channels: tuple[int, int], size: tuple[int, int], stride: int, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Images and gradients at the output, channels last."""
    count, (height, width) = units * rows, size
    images = torch.randn(count, channels[0], height, width, device=DEVICE, dtype=kind)
    slopes = torch.randn(count, channels[1], -(-height // stride), -(-width // stride), device=DEVICE, dtype=kind)
    return images.contiguous(memory_format=torch.channels_last), slopes.contiguous(memory_format=torch.channels_last)


def by_autograd(images: Tensor, slopes: Tensor, rows: int, stride: int) -> Tensor:
    """(units, out, 3, 3, in) in float64."""
    found = []
    for some, below in zip(images.double().split(rows), slopes.double().split(rows), strict=True):
        weight = torch.zeros(
            slopes.shape[1], images.shape[1], 3, 3, dtype=torch.float64, device=DEVICE, requires_grad=True
        )
        output = nn.functional.conv2d(some, weight, stride=stride, padding=1)
        (slope,) = torch.autograd.grad((output * below).sum(), weight)
        found.append(slope.permute(0, 2, 3, 1))
    return torch.stack(found)


@pytest.mark.parametrize("precision", [pytest.param(name, marks=ON_CARD_ONLY.get(name, ())) for name in PRECISIONS])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize(("channels", "size"), [((1, 16), (5, 5)), ((20, 33), (4, 7)), ((40, 1), (3, 3))])
def test_gradients_are_those_of_autograd(formed, precision, stride, rows, channels, size):
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    images, slopes = sides(2, rows, channels, size, stride, kind)
    found = formed.unit_gradients(images, slopes, rows, stride, precision)
    expected = by_autograd(images, slopes, rows, stride)
    assert found.weight.dtype == torch.float32
    error = (found.weight.view(expected.shape).double() - expected).flatten(1).norm(dim=1)
    assert (error <= PRECISIONS[precision] * expected.flatten(1).norm(dim=1)).all()
    sums = images.double().flatten(1).sum(dim=1).view(2, rows).sum(dim=1)
    assert torch.allclose(found.witness.double(), sums, atol=1e-2)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["images", "slopes"])
def test_a_broken_unit_leaves_its_neighbours_as_they_are(formed, stride, value, side):
    """Broken at both ends, where the memory of one unit meets that of the next."""
    given = dict(zip(("images", "slopes"), sides(3, 2, (8, 16), (5, 5), stride, torch.float32), strict=True))
    before = formed.unit_gradients(*given.values(), 2, stride, "fp32")
    given[side][2, :, 0, 0] = value
    given[side][3, :, -1, -1] = value
    after = formed.unit_gradients(*given.values(), 2, stride, "fp32")
    assert torch.equal(after.weight[[0, 2]], before.weight[[0, 2]])
    assert torch.equal(after.witness[[0, 2]], before.witness[[0, 2]])
    shown = after.weight[1] if side == "slopes" else after.witness[1]
    assert not torch.isfinite(shown).all(), "the broken unit itself is noticed"


def test_the_gradient_of_a_unit_does_not_follow_the_others(formed):
    images, slopes = sides(4, 2, (8, 16), (6, 5), 1, torch.float32)
    before = formed.unit_gradients(images, slopes, 2, 1, "fp32").weight
    images[2:4], slopes[2:4] = 100 * images[2:4], -slopes[2:4]
    after = formed.unit_gradients(images, slopes, 2, 1, "fp32").weight
    others = torch.tensor([0, 2, 3])
    assert torch.equal(after[others], before[others])
    assert not torch.equal(after[1], before[1])


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (5, 3000), (40, 30), (33, 257)])
def test_rows_are_measured_and_summed_as_they_are(formed, count, columns):
    rows, weights = torch.randn(count, columns, device=DEVICE), torch.rand(count, device=DEVICE)
    assert torch.allclose(formed.squares(rows), rows.double().square().sum(dim=1), rtol=1e-12)
    target = torch.randn(columns, device=DEVICE)
    expected = target.double() + weights.double() @ rows.double()
    formed.add_weighted(target, rows, weights)
    assert torch.allclose(target.double(), expected, atol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weight_zero_takes_a_row_out_whatever_it_holds(formed, value):
    rows, weights = torch.randn(20, 300, device=DEVICE), torch.rand(20, device=DEVICE)
    weights[3] = 0
    target, expected = torch.zeros(2, 300, device=DEVICE)
    formed.add_weighted(expected, rows, weights)
    rows[3, 7] = value
    formed.add_weighted(target, rows, weights)
    assert torch.equal(target, expected)
    assert not torch.isfinite(formed.squares(rows)[3])
    assert torch.isfinite(formed.squares(rows)[:3]).all()


# The engine with these kernels


@needs_card
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (nn.Conv2d(8, 16, 3, padding=1), (8, 7, 7)),
        (nn.Conv2d(8, 16, 3, stride=2, padding=1), (8, 9, 8)),
        (nn.Conv2d(64, 64, 3, padding=1, bias=False), (64, 3, 3)),  # too few places to form it: by patches
    ],
)
def test_layers_on_a_card_sum_units(network, shape, rows, precision):
    images = torch.randn(5 * rows, *shape)
    expected = units_one_at_a_time(network, (images,), rows)
    clip = float(expected.norm(dim=1).median())
    found, norms = fast_sum(copy.deepcopy(network).to(DEVICE), (images.to(DEVICE),), clip, precision, float_of, rows)
    tolerance = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 8e-2}[precision]
    assert torch.allclose(norms.cpu(), expected.norm(dim=1), rtol=tolerance)
    wanted = clip_slowly(expected, clip).sum(dim=0)
    assert float((found.cpu() - wanted).norm()) <= tolerance * float(wanted.norm())


@needs_card
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_u_net_on_a_card_sums_units_and_leaves_broken_ones_out(rows, precision):
    torch.manual_seed(1)
    network = UNet(1, 4, (16, 16), 1)
    images, times, labels = torch.randn(5 * rows, 1, 9, 9), 30 * torch.randn(5 * rows), torch.randint(0, 4, (5 * rows,))
    expected = units_one_at_a_time(network, (images, times, labels), rows)
    clip = float(expected.norm(dim=1).median())
    images[2 * rows, 0, 4, 4] = math.nan
    given = tuple(part.to(DEVICE) for part in (images, times, labels))
    found, norms = fast_sum(network.to(DEVICE), given, clip, precision, float_of, rows)
    assert norms.isnan().tolist() == [False, False, True, False, False]
    wanted = clip_slowly(expected, clip)[[0, 1, 3, 4]].sum(dim=0)
    tolerance = {"fp32": 1e-3, "tf32": 3e-2, "bf16": 1e-1}[precision]
    assert float((found.cpu() - wanted).norm()) <= tolerance * float(wanted.norm())


@needs_card
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_no_unit_on_a_card_adds_more_than_the_bound(precision):
    torch.manual_seed(3)
    network = UNet(1, 4, (16, 16), 1).to(DEVICE)
    for scale in (1.0, 100.0):
        images = scale * torch.randn(4, 1, 9, 9, device=DEVICE)
        given = (images, torch.zeros(4, device=DEVICE), torch.zeros(4, dtype=torch.long, device=DEVICE))
        clip = 0.5 * float(fast_sum(network, given, precision=precision, loss=float_of, rows=4)[1])
        added, _ = fast_sum(network, given, clip, precision, float_of, 4)
        assert 0.8 * clip < float(added.norm()) <= clip * (1 + 1e-5)
