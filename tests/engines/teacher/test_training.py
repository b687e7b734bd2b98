"""How a teacher learns: the exact sum of clipped gradients, noise on every step, and each record for itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from understudy.configs import MethodConfig
from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.engines.teacher import training
from understudy.engines.teacher.config import MOMENTUM, PURPOSE, PrivateTeacherConfig
from understudy.engines.teacher.patches import learn_filters
from understudy.engines.teacher.training import (
    FeatureRecords,
    SoftmaxRows,
    kept_teacher,
    softmax_gradients,
    train_teacher,
)
from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.files import read_tensors
from understudy.methods.config import build_config
from understudy.models.patches import Patches
from understudy.models.scattering import Scattering
from understudy.privacy.events import Event, NoSampling, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianSum
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CLASSES
from ...helpers.data import tiny_data, with_labels

CPU, CLIP, RATE = torch.device("cpu"), 0.7, 0.25
ALMOST_NONE = 1e-9  # of noise: what is released is the sum
LINEAR = PrivateTeacherConfig(scales=2, directions=2, learning_rate=RATE)
NETWORK = LINEAR.model_copy(update={"kind": "network", "width": 3})
ON_PATCHES = PrivateTeacherConfig(features="patches", filters=8, learning_rate=RATE)
FEATURES = 9 * 4  # of an 8x8 image at two scales and directions
FALSE_ALARM = 1e-6


def make_event(count: int = 1, noise: float = ALMOST_NONE, **fields: Any) -> Event:
    return Event(noise_multiplier=noise, sensitivity="C", count=count, purpose=PURPOSE, **fields)


@pytest.fixture
def mechanism(tmp_path: Path) -> GaussianSum:
    return GaussianSum(Ledger.create(tmp_path / "sums.jsonl"), Randomness(), clip=CLIP, event=make_event(1000))


def make_run(folder: Path, data: ImageDataset, event: Event, seed: int | None = None) -> Run:
    """A run in a folder, begun or taken up again."""
    folder.mkdir(exist_ok=True)
    path = folder / "ledger.jsonl"
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    config = build_config(MethodConfig, {"runtime": {"device": "cpu", "micro_batch": 256}})
    plan = Plan("test", config, data.domain, BUDGET, (event,), 1.0, 1, 0, 0.0, 0.0)
    return Run(folder, plan, data, ledger, Randomness(seed), CPU)


def drawn(count: int, width: int, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features as they are kept, in half precision, of very different lengths; labels; weights."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, width, generator=random) * torch.logspace(-2, 1, count)[:, None]
    labels = torch.randint(classes, (count,), generator=random)
    return features.half(), labels, 0.3 * torch.randn(classes, width + 1, generator=random)


def slowly(features: Tensor, labels: Tensor, weights: Tensor, clip: float = CLIP) -> Tensor:
    """The sum of clipped gradients by autograd, one record at a time, in double precision."""
    total = torch.zeros_like(weights, dtype=torch.float64)
    for row, label in zip(features.double(), labels, strict=True):
        free = weights.double().requires_grad_()
        loss = cross_entropy((free[:, :-1] @ row + free[:, -1])[None], label[None])
        (gradient,) = torch.autograd.grad(loss, free)
        total += gradient * min(1.0, clip / float(gradient.norm()))
    return total


# The exact sum


@pytest.mark.parametrize("cached", [2**19, 5 * 40], ids=["one chunk", "chunks of five"])
def test_the_sum_is_that_of_every_records_clipped_gradient_bias_included(cached, mechanism, monkeypatch):
    monkeypatch.setattr(training, "_CACHED", cached)
    features, labels, weights = drawn(33, 40)
    expected = slowly(features, labels, weights)
    found = softmax_gradients(mechanism, weights, SoftmaxRows(features, labels))
    assert found.dtype == torch.float64
    assert (found - expected).norm() < 2e-4 * expected.norm()  # clipped rows end 1e-4 inside the bound
    assert (found[:, -1] - expected[:, -1]).norm() < 2e-4 * expected[:, -1].norm()
    clipped = slowly(features, labels, weights, clip=math.inf)
    assert (clipped - expected).norm() > 0.1 * expected.norm(), "some rows are longer than the bound"


def test_a_record_less_moves_the_sum_of_very_many_by_its_own_part_alone(mechanism):
    """All later records move to other places; what single precision rounds by place would add up over so many."""
    some, _, weights = drawn(1024, 6)
    features, labels = some.repeat(50, 1), torch.zeros(51_200, dtype=torch.long)
    whole, without, alone = (
        softmax_gradients(mechanism, weights, SoftmaxRows(features[part], labels[part]))
        for part in (slice(None), slice(1, None), slice(1))
    )
    assert (whole - without - alone).norm() < 1e-8
    assert alone.norm() > 0.1


def test_the_bias_counts_in_the_norm(mechanism):
    """Of a record without features the gradient is all bias; its length is that of the error."""
    for length in (0.0, 1e-3, 1.0):
        features = torch.full((1, 1), length)
        moved = softmax_gradients(mechanism, torch.zeros(3, 2), SoftmaxRows(features, torch.zeros(1, dtype=torch.long)))
        exact = (2 / 3) ** 0.5 * (1 + length**2) ** 0.5
        assert float(moved.norm()) == pytest.approx(min(exact, CLIP), rel=2e-4)
        assert float(moved.norm()) <= CLIP


HOSTILE = {
    "zero": 0.0,
    "tiny": 6e-8,
    "ordinary": 1.0,
    "long": 6e4,
    "longer than half precision": 1e15,
    "as long as single precision": 3e38,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
}
WEIGHTS = {"zero": 0.0, "ordinary": 1.0, "huge": 1e30, "inf": math.inf, "nan": math.nan}


@pytest.mark.parametrize("scale", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_no_record_moves_the_sum_by_more_than_the_bound(value, scale, mechanism):
    """Added or removed, in front or behind, whatever it and the weights hold; and the sum stays finite."""
    features, labels, weights = drawn(12, 7)
    features, weights = features.float(), weights * scale
    row = torch.full((1, 7), value)
    row[0, :3] *= -1
    without = softmax_gradients(mechanism, weights, SoftmaxRows(features, labels))
    for label in range(3):
        theirs = torch.tensor([label])
        for rows, names in (
            (torch.cat([row, features]), torch.cat([theirs, labels])),
            (torch.cat([features, row]), torch.cat([labels, theirs])),
        ):
            total = softmax_gradients(mechanism, weights, SoftmaxRows(rows, names))
            assert total.isfinite().all()
            assert float((total - without).norm()) <= CLIP


def test_many_equal_records_at_the_bound_are_told_apart_by_no_more_than_it(mechanism):
    """Rounding of a large sum stays within the room that is left below the bound."""
    features, labels, weights = drawn(1, 50)
    features, labels = 100 * features.expand(3000, -1), labels.expand(3000)
    sums = [
        softmax_gradients(mechanism, weights, SoftmaxRows(features[:count], labels[:count]))
        for count in (3000, 2999, 2001, 2000, 1025, 1024, 1023)
    ]
    for more, fewer in ((0, 1), (2, 3), (4, 5), (5, 6)):
        assert 0.999 * CLIP < float((sums[more] - sums[fewer]).norm()) <= CLIP


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_record_takes_out_itself_alone(broken, mechanism):
    features, labels, weights = drawn(20, 6)
    whole = features.clone()
    features[7, 3] = broken
    kept = torch.arange(20) != 7
    found = softmax_gradients(mechanism, weights, SoftmaxRows(features, labels))
    expected = slowly(whole[kept], labels[kept], weights)
    assert (found - expected).norm() < 2e-4 * expected.norm()


def test_no_record_at_all_sums_to_zero_and_is_released_like_any_other(mechanism):
    rows = SoftmaxRows(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))
    total = softmax_gradients(mechanism, torch.ones(3, 7), rows)
    assert total.shape == (3, 7)
    assert (total == 0).all()
    assert mechanism.release(total).value_dp.isfinite().all()


def test_weights_that_are_not_finite_stop_the_run(mechanism):
    features, labels, weights = drawn(20, 6)
    softmax_gradients(mechanism, weights * math.nan, SoftmaxRows(features, labels))
    with pytest.raises(AbortedRun, match="were not finite"):
        mechanism.check_finite()


# Each record for itself


class Listening(GaussianSum):
    """Remembers the norms that it was shown: one number a record, in double precision, of all that it adds."""

    def clip_factors(self, norms_private: Tensor, present: Tensor) -> Tensor:
        """Those of ``GaussianSum``."""
        self.heard = [*getattr(self, "heard", []), norms_private[present].clone()]
        return super().clip_factors(norms_private, present)


@pytest.mark.parametrize("cached", [2**19, 4 * 324, 7 * 324])
def test_what_a_record_adds_hangs_on_no_other_record_nor_on_its_place(cached, tmp_path, monkeypatch):
    """Bit for bit: without the first record all others move up, into other chunks too."""
    monkeypatch.setattr(training, "_CACHED", cached)
    listening = Listening(Ledger.create(tmp_path / "ledger.jsonl"), Randomness(), clip=CLIP, event=make_event())
    features, labels, weights = drawn(30, 324)

    def norms(kept: Tensor) -> Tensor:
        listening.heard = []
        softmax_gradients(listening, weights, SoftmaxRows(features[kept], labels[kept]))
        return torch.cat(listening.heard)

    everybody = torch.arange(30)
    of_all = norms(everybody)
    for without in (everybody[1:], everybody[:-1], everybody[everybody != 11], everybody.flip(0), everybody[11:12]):
        assert torch.equal(norms(without), of_all[without])


def test_the_addend_of_a_record_is_the_same_wherever_it_stands(mechanism):
    """Bit for bit: alone, or among others that add nothing."""
    features, labels, weights = drawn(30, 324)
    features = features.float()
    for number in (0, 3, 17, 29):
        own = slice(number, number + 1)
        alone = softmax_gradients(mechanism, weights, SoftmaxRows(features[own], labels[own]))
        among = torch.full_like(features, math.nan)
        among[own] = features[own]
        assert torch.equal(softmax_gradients(mechanism, weights, SoftmaxRows(among, labels)), alone)


def of_scattering() -> Scattering:
    return Scattering((1, 8, 8), 2, 2)


def of_patches() -> Patches:
    features = Patches((1, 8, 8), 3)
    learn_filters(features)
    return features


@pytest.mark.parametrize("make", [of_scattering, of_patches])
def test_features_of_a_record_are_those_of_its_image_alone(make, tmp_path):
    """In half precision, bit for bit; behind the last there is an empty one."""
    data, compute = tiny_data(records=30), make()
    run = make_run(tmp_path / "all", data, make_event())
    records = FeatureRecords(run, compute)
    expected = compute(torch.from_numpy(data.images).float() / 255).half()
    assert torch.equal(records.features[:-1], expected)
    assert (records.features[-1] == 0).all()
    fewer = make_run(tmp_path / "fewer", data.subset(np.arange(1, 30)), make_event())
    assert torch.equal(FeatureRecords(fewer, compute).features[:-1], expected[1:])
    gathered = records.gather(torch.tensor([4, 30]))
    assert gathered.present.tolist() == [True, False]
    assert torch.equal(gathered.images[0], expected[4].float())


def test_filters_are_the_same_whatever_the_records_are(tmp_path):
    """They learn from images of chance: nobody's image moves them by a bit."""
    event, learnt = make_event(2, 2.0), of_patches().state_dict()
    config = ON_PATCHES.model_copy(update={"filters": 3})
    for name, data in (("some", tiny_data()), ("others", striped()), ("none", tiny_data().subset(np.arange(0)))):
        teacher = train_teacher(make_run(tmp_path / name, data, event), config, event)
        assert all(torch.equal(value, learnt[key]) for key, value in teacher.features.state_dict().items()), name


def test_no_record_has_no_features(tmp_path):
    records = FeatureRecords(make_run(tmp_path / "run", with_labels([]), make_event()), Scattering((1, 8, 8)))
    assert len(records.features) == 1
    assert records.filler == 0


# The steps


def kept_after(folder: Path, data: ImageDataset, event: Event, seed: int = 1) -> dict[str, Tensor]:
    run = make_run(folder, data, event, seed)
    train_teacher(run, LINEAR, event, CLIP)
    return read_tensors(run.files.teacher)[0]


def rows_of(data: ImageDataset) -> SoftmaxRows:
    features = Scattering((1, 8, 8), 2, 2)(torch.from_numpy(data.images).float() / 255).half().flatten(1)
    return SoftmaxRows(features, torch.from_numpy(data.labels))


def test_steps_are_those_of_momentum_and_the_mean_of_the_last_tenth_is_the_teacher(mechanism, tmp_path):
    data, steps = tiny_data(nominal=60), 30
    teacher = train_teacher(make_run(tmp_path / "run", data, make_event(steps), 1), LINEAR, make_event(steps), CLIP)
    weights, velocity, later = torch.zeros(CLASSES, FEATURES + 1), 0.0, []
    for step in range(steps):
        gradient = softmax_gradients(mechanism, weights, rows_of(data)) / 60  # the declared number
        velocity = MOMENTUM * velocity + gradient.float()
        weights = weights - RATE * velocity
        later += [weights] if step >= 27 else []
    expected = torch.stack(later).mean(dim=0)
    assert len(later) == 3
    assert torch.allclose(teacher.head.weight, expected[:, :-1], atol=1e-5)
    assert torch.allclose(teacher.head.bias, expected[:, -1], atol=1e-5)


@pytest.mark.parametrize("records", [40, 39, 10, 0])
def test_a_step_is_divided_by_the_declared_number_of_records(records, mechanism, tmp_path):
    data = with_labels([0, 1, 2, 1] * 10).subset(np.arange(records))
    kept = kept_after(tmp_path / "run", data, make_event())
    expected = -RATE * softmax_gradients(mechanism, torch.zeros(CLASSES, FEATURES + 1), rows_of(data)) / 40
    assert data.domain.nominal_records == 40
    assert torch.allclose(kept["weights"].double(), expected, atol=1e-8)


@pytest.mark.parametrize("step", [0, 1, 4])
def test_every_step_has_noise_of_the_planned_deviation(step, mechanism, tmp_path):
    """What moved the weights less the exact sum; false alarms: 1e-6 for each step."""
    data, noise, seen = tiny_data(), 3.0, []
    event = make_event(5, noise)
    run = make_run(tmp_path / "run", data, event, seed=3)
    moves: list[Tensor] = []
    original = training.softmax_gradients

    def watched(summing: GaussianSum, weights: Tensor, rows: SoftmaxRows) -> Tensor:
        moves.append(weights.double())
        seen.append(original(summing, weights, rows))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "softmax_gradients", watched)
        train_teacher(run, LINEAR, event, CLIP)
    moves.append(read_tensors(run.files.teacher)[0]["weights"].double())
    before = torch.zeros_like(moves[0]) if step == 0 else moves[step] - moves[step - 1]
    released = (MOMENTUM * before - (moves[step + 1] - moves[step])) / RATE * 40
    noise_seen = (released - seen[step]) / (CLIP * noise)
    squares = float(noise_seen.square().sum())
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise_seen.numel())
    assert low < squares < high
    assert not low < squares * 2.5 < high, "it can fail"


def test_noise_is_fresh_in_every_step_and_every_step_is_on_record_first(tmp_path):
    event = make_event(6, 2.0)
    run = make_run(tmp_path / "run", tiny_data(), event)
    account, released = run.ledger.account(event), []
    run.ledger.witness = lambda purpose, value: released.append((account.reserved, value.clone()))
    train_teacher(run, LINEAR, event)
    assert [reserved for reserved, _ in released] == [1, 2, 3, 4, 5, 6]
    assert len({value.numpy().tobytes() for _, value in released}) == 6


def striped(count: int = 300) -> ImageDataset:
    """Noisy stripes that lie or stand."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, count)
    waves = np.sin(np.arange(8) * 2.2 + random.uniform(0, 6, (count, 1)))
    standing = np.broadcast_to(waves[:, None, :], (count, 8, 8))
    images = np.where(labels[:, None, None] == 1, standing, standing.transpose(0, 2, 1))
    images = 128 + 60 * images + random.normal(0, 30, images.shape)
    return from_arrays(images.clip(0, 255).astype(np.uint8), labels, classes=2, records=count)


@pytest.mark.parametrize(
    "config",
    [LINEAR, pytest.param(NETWORK, marks=pytest.mark.slow), ON_PATCHES],
    ids=["linear", "network", "on patches"],
)
def test_a_teacher_learns_when_there_is_something_to_learn(config, tmp_path):
    data, rate = striped(), PoissonSampling(rate=0.5)
    event = make_event(40, 4.0, sampling=NoSampling() if config.kind == "linear" else rate)
    settings = config.model_copy(update={"learning_rate": 0.5 if config.kind == "linear" else 0.02})
    teacher = train_teacher(make_run(tmp_path / "run", data, event, seed=5), settings, event)
    answers = teacher(torch.from_numpy(data.images).float() / 255).argmax(dim=1)
    assert (answers.numpy() == data.labels).mean() > 0.95


def test_every_execution_of_a_network_is_a_step_on_a_batch_of_the_accounted_rate(tmp_path):
    event = make_event(3, 2.0, sampling=PoissonSampling(rate=0.2))
    run = make_run(tmp_path / "run", tiny_data(), event)
    train_teacher(run, NETWORK, event)
    assert (run.ledger.account(event).remaining, run.lost_steps) == (0, 0)
    other = make_event(3, 2.0, sampling=PoissonSampling(rate=0.21))
    with pytest.raises(InputError, match="rate"):
        train_teacher(make_run(tmp_path / "other", tiny_data(), other), NETWORK, other)


# Stopped and taken up again


class Killed(Exception):
    pass


def killed_in_step(step: int, run: Run, config: PrivateTeacherConfig, event: Event) -> None:
    """A process that dies in a step, after what it reserved."""
    calls: list[str] = []

    def witness(purpose: str, value_dp: Tensor) -> None:
        calls.append(purpose)
        if len(calls) == step:
            raise Killed

    run.ledger.witness = witness
    with pytest.raises(Killed):
        train_teacher(run, config, event)


@pytest.mark.parametrize("config", [LINEAR, NETWORK, ON_PATCHES], ids=["linear", "network", "on patches"])
def test_what_was_reserved_when_it_was_killed_stays_spent(config, tmp_path):
    """Two steps are reserved at a time and kept together: step 5 and 6 were paid for and are gone."""
    sampling = NoSampling() if config.kind == "linear" else PoissonSampling(rate=0.5)
    event, data = make_event(40, 2.0, sampling=sampling), tiny_data()
    first = make_run(tmp_path / "run", data, event)
    killed_in_step(5, first, config, event)
    reserved = first.ledger.account(event).reserved
    assert kept_teacher(first.files.teacher, data.domain, config) is not None

    second, released = make_run(tmp_path / "run", data, event), []
    second.ledger.witness = lambda purpose, value: released.append(value)
    train_teacher(second, config, event)
    assert len(released) == 40 - reserved
    assert second.ledger.account(event).remaining == 0
    assert second.ledger.events()[0].executed == 40
    assert second.lost_steps == reserved - 4

    third = make_run(tmp_path / "run", data, event)
    third.ledger.witness = lambda purpose, value: pytest.fail("it was finished, so nothing more is spent")
    again = train_teacher(third, config, event)
    assert third.lost_steps == second.lost_steps
    kept = kept_teacher(third.files.teacher, data.domain, config)
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in again.state_dict().items())


def test_a_teacher_goes_on_with_the_filters_it_began_with(tmp_path, monkeypatch):
    """And not with others that a later version, or another processor, would learn."""
    event, data = make_event(40, 2.0), tiny_data()
    first = make_run(tmp_path / "run", data, event)
    killed_in_step(5, first, ON_PATCHES, event)
    begun = kept_teacher(first.files.teacher, data.domain, ON_PATCHES).features.state_dict()
    assert begun["filters"].abs().max() > 0.1

    monkeypatch.setattr(training, "learn_filters", lambda features: pytest.fail("there are filters"))
    seen = []
    original = training.FeatureRecords
    monkeypatch.setattr(training, "FeatureRecords", lambda *given: seen.append(original(*given)) or seen[-1])
    teacher = train_teacher(make_run(tmp_path / "run", data, event), ON_PATCHES, event)
    assert all(torch.equal(value, begun[name]) for name, value in teacher.features.state_dict().items())
    expected = teacher.features(torch.from_numpy(data.images).float() / 255).half()
    assert torch.equal(seen[0].features[:-1], expected)


def test_a_state_that_the_ledger_does_not_account_for_is_refused(tmp_path):
    """Without any record, and with one of fewer steps than it has: a ledger that was put back."""
    event, data = make_event(40, 2.0), tiny_data()
    run = make_run(tmp_path / "run", data, event)
    killed_in_step(5, run, LINEAR, event)
    for steps in (0, 2):
        other = make_run(tmp_path / f"other {steps}", data, event)
        if steps:
            other.ledger.account(event).spend(steps)
        other.files.teacher.write_bytes(run.files.teacher.read_bytes())
        with pytest.raises(InputError, match="the ledger does not hold the steps that made it"):
            train_teacher(other, LINEAR, event)


def test_a_teacher_that_was_paid_for_and_is_gone_is_not_trained_again(tmp_path):
    event, data = make_event(4, 2.0), tiny_data()
    run = make_run(tmp_path / "run", data, event)
    train_teacher(run, LINEAR, event)
    run.files.teacher.unlink()
    with pytest.raises(BudgetError, match=r"was paid for, but .* is gone"):
        train_teacher(make_run(tmp_path / "run", data, event), LINEAR, event)


def test_there_is_no_teacher_before_its_first_step(tmp_path):
    run = make_run(tmp_path / "run", tiny_data(), make_event())
    assert kept_teacher(run.files.teacher, run.plan.domain, LINEAR) is None
