"""Per-example gradients: equal to one example at a time and to Opacus, never longer than the clip bound."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients, shaped
from understudy.engines.dpsgd.products import not_above
from understudy.errors import InputError

from .networks import Mixed, clip_slowly, fast_sum, mixed_inputs, quadratic, rows_one_at_a_time

CLIP = 0.3
SIDES = st.integers(1, 3)
PROPERTY = settings(max_examples=60, deadline=None)


def close(found, expected, tolerance=1e-5, scale=None):
    """Relative to the expected value, or to ``scale`` where addends may cancel."""
    assert float((found - expected).norm()) <= tolerance * float(expected.norm() if scale is None else scale) + 1e-12


def check_layer(layer, inputs):
    """Sums and norms in float64 and in float32, without and with clipping."""
    expected = rows_one_at_a_time(layer, (inputs,))
    for kind, tolerance in ((torch.float64, 1e-5), (torch.float32, 1e-3)):
        network, given_inputs = copy.deepcopy(layer).to(kind), inputs.to(kind)
        plain, norms = fast_sum(network, (given_inputs,))
        lengths = expected.norm(dim=1)
        close(plain, expected.sum(dim=0), scale=lengths.sum())
        close(norms, lengths, 1e-3)
        rounding = 3e-6 * lengths.max() if kind is torch.float32 else 0.0  # of gradients that are small by cancellation
        assert (norms >= lengths * (1 - 1e-5) - rounding).all()
        clipped, _ = fast_sum(network, (given_inputs,), CLIP)
        close(clipped, clip_slowly(expected, CLIP).sum(dim=0), tolerance, lengths.clamp(max=CLIP).sum())


@st.composite
def convolutions(draw, transposed=False):
    groups = draw(SIDES)
    channels = [groups * draw(st.integers(1, 4)) for _ in range(2)]
    kernel, stride, dilation = ((draw(SIDES), draw(SIDES)) for _ in range(3))
    padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    options = {"bias": draw(st.booleans()), "groups": groups}
    kind = nn.Conv2d
    if transposed:
        kind = nn.ConvTranspose2d
        options["output_padding"] = tuple(
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
        )
    layer = kind(*channels, kernel, stride, padding, dilation=dilation, **options)
    return layer, torch.randn(3, channels[0], draw(st.integers(1, 7)), draw(st.integers(1, 7)))


def fits(layer, inputs):
    try:
        return layer(inputs).numel() > 0
    except RuntimeError:
        return False


@given(case=convolutions())
@PROPERTY
def test_convolutions_of_any_stride_padding_dilation_and_groups(case):
    assume(fits(*case))
    check_layer(*case)


@given(case=convolutions(transposed=True))
@PROPERTY
def test_transposed_convolutions(case):
    assume(fits(*case))
    check_layer(*case)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [2, 3, (4, 1)])
def test_convolutions_with_padding_by_name(padding, kernel):
    check_layer(nn.Conv2d(3, 5, kernel, padding=padding), torch.randn(3, 3, 6, 5))


@given(values=st.integers(1, 6), out=st.integers(1, 6), places=st.lists(SIDES, max_size=2), bias=st.booleans())
@PROPERTY
def test_linear_layers_with_any_dimensions_between(values, out, places, bias):
    check_layer(nn.Linear(values, out, bias=bias), torch.randn(3, *places, values))


@given(places=st.lists(SIDES, max_size=2), padding=st.sampled_from([None, 0, 2]))
@PROPERTY
def test_embeddings_with_repeated_rows(places, padding):
    layer, indices = nn.Embedding(4, 3, padding_idx=padding), torch.randint(0, 4, (5, *places))
    expected = rows_one_at_a_time(layer, (indices,))
    found, norms = fast_sum(layer, (indices,), CLIP)
    close(norms, expected.norm(dim=1))
    close(found, clip_slowly(expected, CLIP).sum(dim=0))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(2, 6), (6, 3, 4)),
        (nn.GroupNorm(3, 6), (6,)),
        (nn.LayerNorm(5), (5,)),
        (nn.LayerNorm((4, 5)), (3, 4, 5)),
        (nn.LayerNorm(5, bias=False), (2, 5)),
    ],
)
def test_scales_and_shifts_of_normalisations(layer, shape):
    check_layer(layer, torch.randn(4, *shape))


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(4, 16, 3, padding=1), 3),  # Gram matrices: 9 places, 576 weights
        (nn.Conv2d(2, 3, 2), 6),  # formed: 25 places, 24 weights
        (nn.Conv2d(8, 16, 3), 8),  # in between: products a few at a time
        (nn.Conv2d(8, 4, 5), 5),  # one place: rank one
    ],
)
def test_every_way_to_a_norm_is_right(layer, size):
    check_layer(layer, torch.randn(6, layer.in_channels, size, size))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(4, 2, 1), (3, 1, 0), (3, 2, (2, 0))])
def test_planes_of_one_value_each_are_treated_as_such(bias, kernel, stride, padding):
    """Label planes are an expanded view; a copy of them must give the same gradients in the general way."""
    layer = nn.Conv2d(3, 5, kernel, stride, padding, bias=bias)
    planes = torch.randn(4, 3, 1, 1).expand(-1, -1, 7, 6)
    check_layer(layer, planes)
    for precision in ("fp32", "tf32", "bf16"):
        seen = [fast_sum(layer, (images,), precision=precision)[0] for images in (planes, planes.contiguous())]
        close(seen[0], seen[1], 2e-2 if precision == "bf16" else 1e-2 if precision == "tf32" else 1e-5)


def test_a_network_of_all_kinds_of_layers():
    network, inputs = Mixed().double(), mixed_inputs()
    expected = rows_one_at_a_time(network, inputs)
    for clip in (math.inf, CLIP):
        found, norms = fast_sum(network, inputs, clip)
        close(found, clip_slowly(expected, clip).sum(dim=0) if clip < math.inf else expected.sum(dim=0), 1e-9)
        close(norms, expected.norm(dim=1), 1e-9)


def opacus_sums(network, inputs, clip):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule

        wrapped = GradSampleModule(copy.deepcopy(network), loss_reduction="sum")
        quadratic(wrapped(*inputs)).sum().backward()
    rows = {name: parameter.grad_sample for name, parameter in wrapped._module.named_parameters()}
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)
    factors = (clip / norms).clamp(max=1)
    return {name: torch.einsum("n,n...->...", factors, row) for name, row in rows.items()}


@pytest.mark.parametrize("clip", [1e9, CLIP])
def test_sums_equal_those_of_opacus(clip):
    network, inputs = Mixed().double(), mixed_inputs()
    found, _ = fast_sum(network, inputs, clip)
    flat = FlatParameters(copy.deepcopy(network))
    for name, expected in opacus_sums(network, inputs, clip).items():
        close(shaped(found[flat.span(name)], expected.shape), expected, 1e-5)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_no_contribution_is_longer_than_the_clip_bound_in_any_precision(precision, scale):
    """Each example alone, summed by the very code that sums a batch; then its length, in float64."""
    torch.manual_seed(3)  # a network with a gradient for every example: a dead one leaves no length to compare
    network, (images, labels) = Mixed(), mixed_inputs(12, torch.float32)
    for number in range(12):
        one = (scale * images[number : number + 1], labels[number : number + 1])
        clip = 0.5 * float(fast_sum(network, one, precision=precision)[1])
        contribution, _ = fast_sum(network, one, clip, precision)
        assert 0.9 * clip < float(contribution.norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("seed", range(20))
def test_opposite_places_cannot_hide_a_long_contribution(precision, seed):
    """Two places that almost cancel: what rounding leaves of them must not be longer than the bound.

    Without the margin for scaled operands it would be; so the margin must follow the places, not their sum.
    """
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(1, 8, 1, 1, generator=random).repeat(1, 1, 1, 2)
    slopes = torch.randn(8, 1, generator=random) * torch.tensor([1.0, -0.97])
    for clip in (1e-3, 0.7e-3, 3.3e-3):
        contribution, _ = fast_sum(
            nn.Conv2d(8, 8, 1, bias=False),
            (images,),
            clip,
            precision,
            loss=lambda outputs: (outputs.float()[:, :, 0] * slopes).sum(dim=(1, 2)),
        )
        assert 0 < float(contribution.norm()) <= clip * (1 + 1e-6)


@given(weights=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_factors_never_grow_when_they_lose_bits(weights):
    weights = torch.tensor(weights)
    cut = not_above(weights, "bf16")
    assert torch.equal(cut, cut.bfloat16().float())
    assert (cut <= weights).all()
    assert (cut >= weights * (1 - 2**-7)).logical_or(weights < 1e-37).all()
    assert torch.equal(not_above(weights, "fp32"), weights)


def test_low_precision_stays_close_to_the_exact_sum():
    network, inputs = Mixed(), mixed_inputs(8, torch.float32)
    expected = clip_slowly(rows_one_at_a_time(network, inputs), CLIP).sum(dim=0)
    for precision, tolerance in (("fp32", 1e-3), ("tf32", 1e-2), ("bf16", 6e-2)):
        close(fast_sum(network, inputs, CLIP, precision)[0], expected, tolerance)


@given(cuts=st.lists(st.integers(0, 9), max_size=3))
@settings(max_examples=15, deadline=None)
def test_micro_batches_add_up_to_the_whole(cuts):
    torch.manual_seed(1)
    network, inputs = Mixed().double(), mixed_inputs(9)
    whole, _ = fast_sum(network, inputs, CLIP)
    edges = [0, *sorted(cuts), 9]
    parts = [slice(low, high) for low, high in itertools.pairwise(edges) if low < high]
    close(sum(fast_sum(network, tuple(part[rows] for part in inputs), CLIP)[0] for rows in parts), whole, 1e-9)


def test_changing_one_example_changes_only_its_own_contribution():
    network, (images, labels) = Mixed().double(), mixed_inputs()
    changed = images.clone()
    changed[2] += 5
    whole = [fast_sum(network, (some, labels), CLIP) for some in (images, changed)]
    alone = [fast_sum(network, (some[2:3], labels[2:3]), CLIP)[0] for some in (images, changed)]
    close(whole[1][0] - whole[0][0], alone[1] - alone[0], 1e-9)
    others = torch.arange(5) != 2
    assert torch.equal(whole[0][1][others], whole[1][1][others])
    assert not torch.equal(whole[0][1], whole[1][1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_example_that_is_not_finite_leaves_no_trace(value, precision):
    network, (images, labels) = Mixed(), mixed_inputs(5, torch.float32)
    broken = images.clone()
    broken[1, 0, 3, 3] = value
    found, norms = fast_sum(network, (broken, labels), CLIP, precision)
    others = torch.arange(5) != 1
    assert torch.isnan(norms).tolist() == [False, True, False, False, False]
    close(found, fast_sum(network, (images[others], labels[others]), CLIP, precision)[0], 1e-6)


def test_an_overflow_inside_the_network_is_noticed_even_if_the_output_is_finite():
    """Infinite activations that a later layer squashes again: the gradient is not finite, though the logit is."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Tanh())
    images = torch.randn(4, 3)
    with torch.no_grad():
        network[0].weight.mul_(1e30)
    images[2] *= 1e30
    found, norms = fast_sum(network, (images,), CLIP)
    assert math.isnan(norms[2])
    assert torch.isfinite(found).all()


def test_fixed_weights_need_no_norms():
    network, inputs = Mixed().double(), mixed_inputs()
    flat = FlatParameters(copy.deepcopy(network))
    total, weights = flat.zeros(), torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    own = copy.deepcopy(network)
    PerExampleGradients(own, FlatParameters(own)).add(total, inputs, quadratic, weights)
    close(total, weights @ rows_one_at_a_time(network, inputs), 1e-9)


def test_the_network_itself_is_left_alone():
    network, inputs = Mixed(), mixed_inputs(4, torch.float32)
    flat = FlatParameters(network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    engine = PerExampleGradients(network, flat)
    engine.add(flat.zeros(), inputs, quadratic, torch.ones(4))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_new_weights_are_followed(precision):
    network, inputs = Mixed(), mixed_inputs(4, torch.float32)
    flat = FlatParameters(network)
    engine = PerExampleGradients(network, flat, precision)
    flat.values.mul_(1.5)
    engine.refresh()
    total = flat.zeros()
    engine.add(total, tuple(engine_input(engine, part) for part in inputs), quadratic, torch.ones(4))
    close(total.double(), rows_one_at_a_time(network, inputs).sum(dim=0), 5e-2 if precision == "bf16" else 1e-5)


def engine_input(engine, part):
    return part.to(engine.number_type) if part.is_floating_point() else part


# What is refused


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, values):
        return values * self.scale


def shared():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "1 (BatchNorm1d) mixes"),
        (nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3, affine=False)), "1 (BatchNorm2d) mixes"),
        (nn.Sequential(nn.SyncBatchNorm(3)), "0 (SyncBatchNorm) mixes"),
        (nn.Sequential(nn.Conv2d(1, 3, 1), nn.InstanceNorm2d(3, track_running_stats=True)), "InstanceNorm2d"),
        (nn.Sequential(nn.Linear(3, 3), Own()), "1 (Own) has parameters"),
        (Own(), "network (Own)"),
        (nn.LSTM(3, 3), "network (LSTM)"),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU()), "1 (PReLU)"),
        (shared(), "shares a parameter with 0 (Linear)"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), "Parametrized"),
        (nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"), "pads with 'circular'"),
        (nn.Embedding(3, 3, max_norm=1.0), "max_norm"),
        (nn.Embedding(3, 3, scale_grad_by_freq=True), "scale_grad_by_freq"),
    ],
)
def test_what_has_no_gradient_per_example_is_refused_by_name(network, named):
    with pytest.raises(InputError) as refusal:
        PerExampleGradients(network, FlatParameters(network))
    assert named in str(refusal.value)


def refuse(network, inputs, message):
    flat = FlatParameters(network)
    with pytest.raises(InputError, match=message):
        PerExampleGradients(network, flat).add(flat.zeros(), inputs, quadratic, torch.ones(4))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, values):
        return self.layer(self.layer(values))


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, values):
        return self.layer(values.view(-1, 3)).view(len(values), -1).sum(dim=1)


def test_a_layer_that_is_used_twice_is_refused():
    refuse(Twice(), (torch.randn(4, 3),), "layer layer is used twice")


def test_examples_folded_into_other_dimensions_are_refused():
    refuse(Folded(), (torch.randn(4, 2, 3),), "keep examples in the first dimension")


def test_an_output_that_is_changed_in_place_is_refused():
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.ReLU(inplace=True))
    refuse(network, (torch.randn(4, 3),), "layer 2 is changed in place")


def test_a_network_without_parameters_is_refused():
    with pytest.raises(InputError, match="no parameters"):
        FlatParameters(nn.ReLU())


class BatchStatistics(nn.Module):
    """No parameters, and so no name to be refused by: it subtracts the mean over the batch."""

    def forward(self, values):
        return values - values.mean(dim=0)


class Shuffled(nn.Module):
    def forward(self, values):
        return values.flip(0)


class WhileTraining(nn.Module):
    def forward(self, values):
        return values - values.mean(dim=0) if self.training else values


class _SharedSlopes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, slopes):
        return slopes.mean(dim=0, keepdim=True).expand_as(slopes)


class OnlyBackward(nn.Module):
    def forward(self, values):
        return _SharedSlopes.apply(values)


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("culprit", [BatchStatistics(), Shuffled(), WhileTraining(), OnlyBackward()])
@pytest.mark.parametrize("last", [True, False])
def test_mixing_without_parameters_is_found_by_trying(culprit, last, device):
    layers = [nn.Linear(3, 3), culprit, *([] if last else [nn.Linear(3, 1)])]
    network = nn.Sequential(*layers).to(device)
    engine = PerExampleGradients(network, FlatParameters(network))
    with pytest.raises(InputError, match="mixes the examples of a batch"):
        engine.check_examples_apart((torch.randn(5, 3, device=device),), (torch.randn(5, 3, device=device),))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_network_that_treats_every_example_for_itself_passes_the_trial(device, precision):
    network = nn.Sequential(nn.ConvTranspose2d(3, 8, 4, 2, 1), nn.SELU(), nn.ConvTranspose2d(8, 2, 4, 2, 1)).to(device)
    engine = PerExampleGradients(network, FlatParameters(network), precision)
    images = torch.randn(2, 5, 3, 8, 8, device=device).to(engine.number_type)
    engine.check_examples_apart((images[0],), (images[1],))


def test_a_network_of_several_inputs_passes_the_trial():
    network = Mixed()
    PerExampleGradients(network, FlatParameters(network)).check_examples_apart(
        mixed_inputs(5, torch.float32), mixed_inputs(5, torch.float32)
    )


def test_flat_parameters_are_views_and_keep_their_values():
    network, reference = Mixed(), None
    reference = copy.deepcopy(network.state_dict())
    flat = FlatParameters(network)
    assert all(torch.equal(value, reference[name]) for name, value in network.state_dict().items())
    flat.values.zero_()
    assert all(not value.any() for value in network.state_dict().values())
    network.load_state_dict(reference)
    assert flat.values.abs().sum() > 0
    assert all(torch.equal(value, reference[name]) for name, value in network.state_dict().items())
