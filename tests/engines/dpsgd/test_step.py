"""The private step: sum, noise, divisor and law as the privacy rules say; nothing follows the drawn batch."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import softplus

from understudy.engines.dpsgd.captured import CapturedSum
from understudy.engines.dpsgd.gradients import FlatParameters
from understudy.engines.dpsgd.step import Descent, FlatAdam, FlatDescent, StepOptions
from understudy.engines.records import Records
from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.privacy.events import NoSampling, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import NoiseStream, Randomness

from ...helpers.cases import RECORDS
from ...helpers.data import tiny_data, with_labels
from .networks import rows_one_at_a_time
from .steps import (
    ALMOST_NONE,
    BATCH,
    CLIP,
    CPU,
    NOISE,
    STILL,
    Mixing,
    Public,
    close,
    empty,
    everybody,
    make_event,
    make_network,
    make_step,
)

FALSE_ALARM = 1e-6


# The sum


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
@pytest.mark.parametrize("micro_batch", [1, 5, 2000])
@pytest.mark.parametrize("private", [True, False])
def test_the_sum_is_that_of_one_example_at_a_time(tmp_path, kind, micro_batch, private):
    watched = make_step(
        tmp_path, tiny_data(kind), network=make_network(kind), private=private, runtime={"micro_batch": micro_batch},
        event=make_event(noise_multiplier=ALMOST_NONE), **STILL,
    )  # fmt: skip
    for _ in range(3):
        update = watched.take()
        assert sum(int((some.signs < 0).sum()) for some in watched.shown) == BATCH
        expected = watched.exact(CLIP if private else None)
        assert close(2 * BATCH * update, expected)
        assert not private or close(watched.sums[-1], expected)


@pytest.mark.parametrize("kind", ["labelled", "unlabelled"])
def test_the_examples_of_a_batch_are_drawn_records_and_all_companions(tmp_path, kind):
    data = tiny_data(kind)
    watched = make_step(tmp_path, data, **STILL)
    pixels = {image.tobytes(): number for number, image in enumerate(data.images)}
    for _ in range(5):
        watched.take()
        for some in watched.shown:
            assert (some.labels is None) == (kind == "unlabelled")
            real = some.signs > 0
            numbers = [pixels[(image * 255).round().byte().numpy().tobytes()] for image in some.images[real]]
            assert len(set(numbers)) == len(numbers)
            if some.labels is not None:
                assert some.labels[real].tolist() == data.labels[numbers].tolist()


def test_the_update_is_the_sum_and_noise_over_the_expected_batch_and_the_companions(tmp_path):
    """2B where there are as many companions as expected units, whatever the drawn size is."""
    event = make_event(noise_multiplier=ALMOST_NONE)
    watched = make_step(tmp_path, event=event, randomness=Randomness(1), **STILL)
    sizes = []
    for _ in range(5):
        update = watched.take()
        sizes.append(sum(int((some.signs > 0).sum()) for some in watched.shown))
        assert float((update - watched.sums[-1] / (2 * BATCH)).abs().max()) < 1e-7
        assert float(watched.sums[-1].norm()) > 0
    assert len(set(sizes)) > 1


def test_without_companions_the_divisor_is_the_expected_batch(tmp_path):
    event = make_event(noise_multiplier=ALMOST_NONE)
    watched = make_step(tmp_path, companions=None, event=event, randomness=Randomness(1), **STILL)
    update = watched.take()
    assert float((update - watched.sums[-1] / BATCH).abs().max()) < 1e-7
    assert all((some.signs > 0).all() for some in watched.shown)
    assert close(watched.sums[-1], watched.exact())


def test_one_more_record_moves_the_exact_sum_by_at_most_the_clip_bound(tmp_path):
    network = make_network()
    sums = []
    for labels in ([0, 1, 2], [0, 1, 2, 1]):
        settings = everybody(RECORDS, noise_multiplier=ALMOST_NONE)
        companions = Public(fresh=False)
        watched = make_step(
            tmp_path / str(len(labels)), with_labels(labels), network=copy.deepcopy(network), companions=companions,
            **settings, **STILL,
        )  # fmt: skip
        watched.take()
        sums.append(watched.sums[0])
    assert 0.9 * CLIP < float((sums[1] - sums[0]).norm()) <= CLIP * (1 + 1e-5)


def test_places_that_a_batch_does_not_fill_count_for_nothing(tmp_path):
    """On a graphics card batches are filled up: the same sum, and the same diagnostics."""
    network = make_network()
    found = []
    for absent in (0, 7):
        companions = Public(fresh=False, absent=absent)
        watched = make_step(
            tmp_path / str(absent), with_labels([0, 1, 2]), network=copy.deepcopy(network), companions=companions,
            **everybody(RECORDS, noise_multiplier=ALMOST_NONE), **STILL,
        )  # fmt: skip
        watched.take()
        assert sum(int((~some.present).sum()) for some in watched.shown) == absent
        found.append((watched.sums[0], watched.step.diagnostics()))
    assert close(found[0][0], found[1][0], 1e-6)
    assert found[0][1] == pytest.approx(found[1][1])
    assert 0 < found[0][1]["clipped"] <= 1


def test_a_place_without_a_record_is_not_present():
    records = Records(with_labels([0, 1, 2]), CPU, torch.float32)
    assert records.gather(torch.tensor([2, records.filler, 0, records.filler])).present.tolist() == [
        True, False, True, False
    ]  # fmt: skip


def test_units_that_do_not_fit_take_a_pass_of_their_own():
    """What a graphics card does with a batch beyond its places: every unit once, companions once."""
    total, filler = torch.zeros(100, dtype=torch.float64), 99

    def add(indices: Tensor, drawn: tuple[Tensor, ...]) -> None:
        total.index_add_(0, indices, torch.ones(len(indices), dtype=torch.float64))
        total[98] += sum(float(part.sum()) for part in drawn)

    for companions in ((torch.ones(3),), ()):
        captured = CapturedSum(add, 8, companions, total, filler)
        for size in (0, 3, 8, 20):
            total.zero_()
            indices = torch.full((24 if size > 8 else 8,), filler)
            indices[:size] = torch.arange(size)
            captured.replay(indices, size, companions)
            assert total[:98].nonzero().flatten().tolist() == list(range(size))
            assert float(total[:98].sum()) == size
            assert float(total[98]) == sum(float(part.sum()) for part in companions)


def test_a_step_whose_spending_failed_leaves_nothing_for_the_next(tmp_path):
    """Else the next release would hold two batches and charge one: a record could move it by 2C."""
    watched = make_step(tmp_path / "run", event=make_event(noise_multiplier=ALMOST_NONE), **STILL)
    path = watched.run.ledger.path
    watched.run.ledger.path = tmp_path / "full disk" / "ledger.jsonl"
    with pytest.raises(InputError, match="could not be written"):
        watched.step.take()
    assert watched.shown
    assert not watched.sums
    watched.run.ledger.path = path
    watched.take()
    assert close(watched.sums[0], watched.exact())


# The noise and what it costs


def test_the_noise_has_deviation_clip_times_multiplier_over_the_divisor(tmp_path):
    """Differences of updates of one fixed batch of companions and no units; chi-square, false-alarm rate 1e-6."""
    watched = make_step(tmp_path, empty(tiny_data()), companions=Public(fresh=False), **STILL)
    updates = [watched.take() for _ in range(40)]
    noise = (torch.stack(updates[::2]) - torch.stack(updates[1::2])).flatten() / math.sqrt(2)
    deviation = CLIP * NOISE / (2 * BATCH)
    statistic, law = float((noise.double() / deviation).square().sum()), stats.chi2(noise.numel())
    assert noise.numel() > 20_000
    assert 2 * min(law.cdf(statistic), law.sf(statistic)) > FALSE_ALARM
    assert stats.kstest(noise.numpy() / deviation, "norm").pvalue > FALSE_ALARM
    assert float(np.corrcoef(updates[0], updates[2])[0, 1]) != 1.0


def test_an_empty_batch_is_a_step_of_companions_and_noise(tmp_path):
    watched = make_step(tmp_path, empty(tiny_data()), event=make_event(noise_multiplier=ALMOST_NONE), **STILL)
    update = watched.take()
    assert all((some.signs < 0).all() for some in watched.shown)
    assert close(2 * BATCH * update, watched.exact())
    assert watched.run.ledger.events()[0].executed >= 1


def test_an_empty_batch_without_companions_is_a_step_of_noise(tmp_path):
    watched = make_step(tmp_path, empty(tiny_data()), companions=None, **STILL)
    update = watched.take()
    assert not watched.shown
    law = stats.chi2(update.numel(), scale=(CLIP * NOISE / BATCH) ** 2)
    assert law.ppf(FALSE_ALARM / 2) < float(update.double().square().sum()) < law.isf(FALSE_ALARM / 2)
    assert watched.run.ledger.events()[0].executed >= 1


def test_companions_and_divisor_do_not_follow_the_drawn_batch(tmp_path):
    """Everything that is drawn for them has the same shape, and its values stay the same when the units are others."""
    seen = []
    for number, records in enumerate((0, 3, 40)):
        data = tiny_data(records=max(1, records), nominal=RECORDS)
        data = empty(data) if records == 0 else data
        watched = make_step(tmp_path / str(number), data, event=make_event(count=200), randomness=Randomness(5))
        watched.step.take(150)
        assert len(watched.companions.drawn) >= 3
        seen.append([(tuple(levels.shape), levels.sum().item()) for levels in watched.companions.drawn])
    assert seen[0] == seen[1] == seen[2]


class LookedAt(Randomness):
    """Randomness whose noise streams say when they are drawn from."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self._look = look

    def noise(self, device: torch.device) -> NoiseStream:
        stream, draw = super().noise(device), NoiseStream.draw
        stream.draw = lambda shape: self._look() or draw(stream, shape)  # type: ignore[method-assign]
        return stream


def test_every_step_is_on_record_before_its_noise_exists(tmp_path):
    seen: list[int] = []
    ledgers: list[Ledger] = []

    def look() -> None:
        seen.append(Ledger.open(ledgers[0].path).events()[0].executed)

    watched = make_step(tmp_path, randomness=LookedAt(look))
    ledgers.append(watched.run.ledger)
    watched.step.take(3)
    assert seen == [1, 2, 3]


def test_steps_end_with_the_plan(tmp_path):
    watched = make_step(tmp_path, event=make_event(count=3))
    step = watched.step
    assert step.remaining == 3
    step.take(2)
    before = copy.deepcopy(watched.network.state_dict())
    with pytest.raises(BudgetError, match="2 more steps were asked for, but only 1 of the 3"):
        step.take(2)
    assert all(torch.equal(before[name], value) for name, value in watched.network.state_dict().items())
    step.take(1)
    assert step.remaining == 0


def test_without_privacy_there_is_nothing_to_spend_and_nothing_to_tell(tmp_path):
    watched = make_step(tmp_path, private=False)
    watched.step.take(2)
    assert watched.step.remaining is None
    assert watched.step.diagnostics() == {}
    assert not watched.sums
    assert watched.run.ledger.events() == ()


def test_too_many_gradients_that_are_not_finite_abort_the_run(tmp_path):
    """Their rows count as zero, so the sum is empty; the abort comes with the next look."""
    network = make_network()
    with torch.no_grad():
        network.image_layer.weight[0] = math.inf
    event = make_event(noise_multiplier=ALMOST_NONE, count=200)
    watched = make_step(tmp_path, network=network, event=event, **STILL)
    before = copy.deepcopy(network.state_dict())
    watched.step.take()
    assert float(watched.sums[0].abs().max()) < 1e-7
    for look in (watched.step.diagnostics, watched.step.check_finite, partial(watched.step.take, 100)):
        with pytest.raises(AbortedRun, match="not finite"):
            look()
    assert len(watched.sums) <= 64, "a look comes with every new batch of draws"
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


# What is refused


@pytest.mark.parametrize("companions", [Public(), None])
@pytest.mark.parametrize(
    ("event", "message"),
    [
        (make_event(sampling=PoissonSampling(rate=0.01)), "Poisson rate of 0.15"),
        (make_event(sampling=NoSampling()), "is accounted"),
    ],
)
def test_an_event_that_says_something_else_is_refused(tmp_path, event, message, companions):
    with pytest.raises(InputError, match=message):
        make_step(tmp_path, event=event, companions=companions)


def test_private_steps_without_an_event_are_refused(tmp_path):
    with pytest.raises(InputError, match="need the event"):
        make_step(tmp_path, event=None)


def test_a_batch_without_units_is_refused():
    with pytest.raises(InputError, match="batch: 0"):
        StepOptions(batch=0, clip=1.0, learning_rate=1e-3, betas=(0.5, 0.9))


def test_a_batch_whose_rounded_sum_could_differ_by_more_than_a_unit_is_refused():
    """Units are clipped 1e-4 below C; sums of single precision keep within that up to some ten thousand of them."""
    with pytest.raises(InputError, match=r"batch: 16,385, .* pass a privacy\.batch of at most that"):
        StepOptions(batch=16_385, clip=1.0, learning_rate=1e-3)
    StepOptions(batch=16_384, clip=1.0, learning_rate=1e-3)
    StepOptions(batch=16_385, clip=1.0, learning_rate=1e-3, private=False)


@pytest.mark.parametrize("companions", [Public(), None])
def test_a_network_that_mixes_examples_is_refused(tmp_path, companions):
    with pytest.raises(InputError, match="mixes the examples"):
        make_step(tmp_path, network=Mixing(), companions=companions)


# Looking on


def test_norms_are_what_a_step_clips_by_and_cost_nothing(tmp_path):
    data = with_labels([0, 1, 2])
    watched = make_step(tmp_path, data, **STILL)
    found = watched.step.norms_private(torch.tensor([2, 0]))
    inputs = torch.from_numpy(data.images[[2, 0]]).double() / 255, torch.from_numpy(data.labels[[2, 0]])
    expected = rows_one_at_a_time(watched.network, inputs, lambda out: softplus(-out)).norm(dim=1)
    assert (found >= expected).all()
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert watched.step.units_private == 3
    assert watched.run.ledger.events()[0].executed == 0
    assert not watched.sums


def test_a_listener_is_called_before_each_step_at_the_weights_it_is_taken_from(tmp_path):
    watched, heard = make_step(tmp_path), []
    watched.step.listen(lambda: heard.append(copy.deepcopy(watched.network.state_dict())))
    before = copy.deepcopy(watched.network.state_dict())
    watched.step.take(2)
    assert len(heard) == 2
    assert all(torch.equal(before[name], value) for name, value in heard[0].items())
    assert not all(torch.equal(before[name], value) for name, value in heard[1].items())


# The optimiser


def test_a_bound_on_the_weights_is_kept_after_every_step(tmp_path):
    watched = make_step(tmp_path, weight_bound=0.01)
    for _ in range(3):
        watched.step.take()
        largest = max(float(weight.abs().max()) for weight in watched.network.state_dict().values())
        assert largest == pytest.approx(0.01)


def test_a_checkpoint_brings_everything_back(tmp_path):
    first, second = make_step(tmp_path / "first"), make_step(tmp_path / "second")
    first.step.take(3)
    second.network.load_state_dict(copy.deepcopy(first.network.state_dict()))
    second.step.optimizer.load_state_dict(copy.deepcopy(first.step.optimizer.state_dict()))
    update = torch.randn_like(first.step.optimizer.state_dict()["first"], dtype=torch.float64)
    for watched in (first, second):
        watched.step.optimizer.step(update)
    states = [watched.network.state_dict() for watched in (first, second)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_flat_adam_is_adam():
    network = nn.Linear(5, 3)
    reference = copy.deepcopy(network)
    flat = FlatParameters(network)
    ours, theirs = FlatAdam(flat.values, 0.01, (0.5, 0.99)), torch.optim.Adam(reference.parameters(), 0.01, (0.5, 0.99))
    for number in range(5):
        inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        theirs.zero_grad()
        reference(inputs).square().sum().backward()
        update = flat.zeros().double()
        for name, parameter in reference.named_parameters():
            update[flat.span(name)] = parameter.grad.flatten().double()
        ours.step(update)
        theirs.step()
    for own, other in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(own, other, atol=1e-6)


def test_flat_descent_goes_against_the_gradient_at_a_falling_rate_and_goes_on_where_it_stood():
    values = torch.zeros(3)
    descent = FlatDescent(values, 0.5, Descent(last_rate=0.1, steps=2))
    update = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    gone = []
    for _ in range(4):
        before = values.clone()
        descent.step(update)
        gone.append(before - values)
        again = FlatDescent(values, 0.5, Descent(last_rate=0.1, steps=2))
        again.load_state_dict(descent.state_dict())
        descent = again
    rates = (0.5, 0.3, 0.1, 0.1)
    assert all(torch.allclose(way, rate * update.float()) for way, rate in zip(gone, rates, strict=True))


# On a graphics card

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")


@on_a_card
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("accompanied", [True, False])
@pytest.mark.parametrize("records", [0, 3, RECORDS])
def test_a_captured_graph_adds_what_one_example_at_a_time_adds(tmp_path, precision, accompanied, records):
    """Also for a batch that does not fit into the captured places (there are 4 declared records), and for no record."""
    data = tiny_data(records=max(1, records), nominal=4)
    data = empty(data) if records == 0 else data
    network = make_network()
    settings = {**everybody(4, noise_multiplier=ALMOST_NONE), **STILL}
    public = [Public(4, fresh=False) if accompanied else None for _ in range(2)]
    reference = make_step(tmp_path / "cpu", data, network=copy.deepcopy(network), companions=public[0], **settings)
    reference.take()
    if accompanied and precision == "bf16":
        public[1].number_type = torch.bfloat16
    card = {"device": torch.device("cuda"), "runtime": {"precision": precision}}
    captured = make_step(tmp_path / "cuda", data, network=network, companions=public[1], **settings, **card)
    for _ in range(3):
        captured.take()
        found, expected = captured.sums[-1].cpu(), reference.sums[0]
        tolerance = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}[precision]
        assert float((found - expected).norm()) <= tolerance * float(expected.norm()) + 1e-6


@on_a_card
def test_replays_get_fresh_noise_and_fresh_batches(tmp_path):
    watched = make_step(tmp_path, device=torch.device("cuda"), **STILL)
    rows = torch.stack([watched.take() for _ in range(6)]).double().cpu()
    assert len({tuple(row[:5].tolist()) for row in rows}) == 6
    noise = (rows[::2] - rows[1::2]).flatten() * (2 * BATCH) / math.sqrt(2)
    assert 0.9 * CLIP * NOISE < float(noise.std()) < 1.5 * CLIP * NOISE
