"""The discriminator step: sum, noise, divisor and law as the privacy rules say; nothing follows the drawn batch."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from understudy.configs import MethodConfig
from understudy.data import ImageDataset
from understudy.engines.dpsgd.gradients import FlatParameters
from understudy.engines.dpsgd.optimizer import FlatAdam
from understudy.engines.dpsgd.step import DiscriminatorStep, StepOptions
from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.methods.config import build_config
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig, DpganGenerator
from understudy.models.generator import GeneratorConfig
from understudy.privacy.events import Event, NoSampling, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, RECORDS
from ...helpers.data import tiny_data
from .networks import clip_slowly, rows_one_at_a_time

FALSE_ALARM = 1e-6
BATCH, CLIP, NOISE = 6, 0.5, 2.0
CPU = torch.device("cpu")


def networks(kind="labelled"):
    classes = None if kind == "unlabelled" else 3
    shape = (3 if kind == "rgb" else 1, 8, 8)
    discriminator = DpganDiscriminator(DpganDiscriminatorConfig(shape=shape, classes=classes, width=4))
    return discriminator, DpganGenerator(GeneratorConfig(kind="dpgan", shape=shape, classes=classes, latent=3, width=4))


def make_event(**changes):
    given = {"noise_multiplier": NOISE, "count": 50, "sampling": PoissonSampling(rate=BATCH / RECORDS)}
    return Event(sensitivity="C", purpose="discriminator steps", **{**given, **changes})


def make_step(folder, data=None, nets=None, event=None, device=CPU, **changes):
    """A step on a run of its own; ``changes`` are settings or, under ``runtime``, runtime settings."""
    data, (discriminator, generator) = tiny_data() if data is None else data, nets or networks()
    runtime = {"device": "cpu", **changes.pop("runtime", {})}
    settings = StepOptions(**{"batch": BATCH, "clip": CLIP, "learning_rate": 1e-3, "betas": (0.5, 0.999), **changes})
    event = (event or make_event()) if settings.private else None
    config = build_config(MethodConfig, {"runtime": runtime})
    plan = Plan("test", config, data.domain, BUDGET, () if event is None else (event,), 1.0, 1, 0, 0.0, 0.0)
    folder.mkdir(exist_ok=True)
    run = Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(), device)
    return DiscriminatorStep(run, discriminator.to(device), generator.to(device), settings, event)


def watch_updates(step, monkeypatch):
    """The updates that reach Adam, as they come."""
    updates = []
    monkeypatch.setattr(step._optimizer, "step", lambda update_dp: updates.append(update_dp.clone()))
    return updates


def empty(data):
    return ImageDataset(data.name, data.domain, data.images[:0], None if data.labels is None else data.labels[:0])


def expected_sum(discriminator, reals, fakes, clip):
    """Real target 1, fake target 0, logistic loss; each example clipped for itself."""
    total = 0
    for (images, labels), sign in ((reals, 1), (fakes, -1)):
        if len(images):
            inputs = (images, labels)
            rows = rows_one_at_a_time(discriminator, inputs, lambda out, s=sign: nn.functional.softplus(-s * out))
            total = total + (rows if clip is None else clip_slowly(rows, clip)).sum(dim=0)
    return total


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
@pytest.mark.parametrize("micro_batch", [1, 5, 2000])
@pytest.mark.parametrize("private", [True, False])
def test_the_sum_is_that_of_one_example_at_a_time(tmp_path, kind, micro_batch, private):
    data, nets = tiny_data(kind), networks(kind)
    step = make_step(tmp_path, data, nets, private=private, runtime={"micro_batch": micro_batch})
    for _ in range(3):
        step._draw_ahead()
        indices, size, latent, labels = step._waiting[-1]
        step._sum_gradients()
        chosen = indices[:size].numpy()
        images = torch.from_numpy(data.images[chosen]).double() / 255
        own_labels = None if data.labels is None else torch.from_numpy(data.labels[chosen])
        with torch.no_grad():
            fakes = nets[1].pixels(nets[1](latent, labels)).double()
        expected = expected_sum(
            nets[0], (images, own_labels), (fakes, labels if kind != "unlabelled" else None), CLIP if private else None
        )
        assert float((step._total - expected).norm()) < 1e-3 * float(expected.norm())
        assert len(latent) == BATCH
        step._total.zero_()


def test_the_update_is_the_sum_and_noise_over_twice_the_expected_batch(tmp_path, monkeypatch):
    """With almost no noise the update is the sum of the clipped gradients over 2B, whatever the drawn size."""
    step = make_step(tmp_path, event=make_event(noise_multiplier=1e-9))
    updates = watch_updates(step, monkeypatch)
    totals = []
    original = step._mechanism.release
    monkeypatch.setattr(
        step._mechanism, "release", lambda total, **more: totals.append(total.clone()) or original(total, **more)
    )
    step.take(5)
    for update, total in zip(updates, totals, strict=True):
        assert float((update - total / (2 * BATCH)).abs().max()) < 1e-7
        assert float(total.norm()) > 0


def test_the_noise_has_deviation_clip_times_multiplier_over_twice_the_batch(tmp_path, monkeypatch):
    """Differences of updates of one fixed batch of fakes and no reals; chi-square, false-alarm rate 1e-6."""
    step = make_step(tmp_path, empty(tiny_data()))
    updates = watch_updates(step, monkeypatch)
    step._draw_ahead()
    step._waiting = [step._waiting[0]] * 40
    step.take(40)
    noise = (torch.stack(updates[::2]) - torch.stack(updates[1::2])).flatten() / math.sqrt(2)
    deviation = CLIP * NOISE / (2 * BATCH)
    statistic, law = float((noise.double() / deviation).square().sum()), stats.chi2(noise.numel())
    assert noise.numel() > 20_000
    assert 2 * min(law.cdf(statistic), law.sf(statistic)) > FALSE_ALARM
    assert stats.kstest(noise.numpy() / deviation, "norm").pvalue > FALSE_ALARM
    assert float(np.corrcoef(updates[0], updates[2])[0, 1]) != 1.0


def test_an_empty_batch_is_a_step_of_fakes_and_noise(tmp_path, monkeypatch):
    nets = networks()
    step = make_step(tmp_path, empty(tiny_data()), nets, event=make_event(noise_multiplier=1e-9))
    updates = watch_updates(step, monkeypatch)
    step._draw_ahead()
    _, size, latent, labels = step._waiting[-1]
    assert size == 0
    step.take(1)
    with torch.no_grad():
        fakes = nets[1].pixels(nets[1](latent, labels)).double()
    expected = clip_slowly(
        rows_one_at_a_time(nets[0], (fakes, labels), lambda out: nn.functional.softplus(out)), CLIP
    ).sum(dim=0)
    assert float((2 * BATCH * updates[0] - expected).norm()) < 1e-3 * float(expected.norm())
    assert step._mechanism.account.reserved >= 1


def test_fakes_and_divisor_do_not_follow_the_drawn_batch(tmp_path, monkeypatch):
    """Everything that is drawn for fakes has the same shape, and its values stay the same when the reals are others."""
    seen = []
    for number, records in enumerate((0, 3, 40)):
        data = tiny_data(records=max(1, records), nominal=RECORDS)
        data = empty(data) if records == 0 else data
        step = make_step(tmp_path / str(number), data)
        step._random.manual_seed(5)
        sizes = []
        for _ in range(4):
            step._draw_ahead()
            sizes.append([(tuple(latent.shape), latent.sum().item()) for _, _, latent, _ in step._waiting])
        seen.append(sizes)
    assert seen[0] == seen[1] == seen[2]


def test_one_more_record_moves_the_exact_sum_by_at_most_the_clip_bound(tmp_path):
    nets = networks()
    step = make_step(tmp_path, nets=nets)
    step._draw_ahead()
    _, _, latent, labels = step._waiting[0]
    sums = []
    for chosen in ([1, 2, 3], [1, 2, 3, 4]):
        step._total.zero_()
        step._add(torch.tensor(chosen), (latent, labels))
        sums.append(step._total.double())
    assert 0.9 * CLIP < float((sums[1] - sums[0]).norm()) <= CLIP * (1 + 1e-5)


def test_places_that_a_batch_does_not_fill_count_for_nothing(tmp_path):
    """On a graphics card batches are filled up: the same sum, and the same diagnostics."""
    step = make_step(tmp_path)
    step._draw_ahead()
    _, _, latent, labels = step._waiting[0]
    sums, notes = [], []
    for padding in (0, 7):
        step._total.zero_()
        step._add(torch.tensor([4, 9, 2] + [step._reals.filler] * padding), (latent, labels))
        sums.append(step._total.clone())
        notes.append(step.diagnostics())
    assert float((sums[0] - sums[1]).norm()) < 1e-6 * float(sums[0].norm())
    assert notes[0] == pytest.approx(notes[1])
    assert 0 < notes[0]["clipped"] <= 1


def test_reals_that_do_not_fit_take_a_pass_of_their_own(tmp_path):
    """What a graphics card does with a batch beyond its places: the parts add up to the whole."""
    step = make_step(tmp_path)
    step._draw_ahead()
    _, _, latent, labels = step._waiting[0]
    chosen = torch.arange(20)
    step._add(chosen, (latent, labels))
    whole = step._total.clone()
    step._total.zero_()
    step._add(chosen[12:], None)
    step._add(chosen[:12], (latent, labels))
    assert float((whole - step._total).norm()) < 1e-6 * float(whole.norm())


def test_every_step_is_on_record_before_its_noise_exists(tmp_path, monkeypatch):
    step = make_step(tmp_path)
    account = step._mechanism.account
    seen = []
    original = step._mechanism._noisy
    monkeypatch.setattr(
        step._mechanism, "_noisy", lambda *given: seen.append(account.reserved - account._available) or original(*given)
    )
    step.take(3)
    assert seen == [1, 2, 3]


def test_a_step_whose_spending_failed_leaves_nothing_for_the_next(tmp_path, monkeypatch):
    """Else the next release would hold two batches and charge one: a record could move it by 2C."""
    step = make_step(tmp_path / "run")
    released = []
    release = step._mechanism.release

    def full_disk(total, **options):
        raise InputError("ledger: no space left")

    monkeypatch.setattr(step._mechanism, "release", full_disk)
    with pytest.raises(InputError, match="no space"):
        step.take()
    assert step._total.norm() > 0
    only = torch.zeros_like(step._total)
    monkeypatch.setattr(step, "_add", lambda *_: step._total.add_(1.0))
    monkeypatch.setattr(
        step._mechanism, "release", lambda total, **kw: released.append(total.clone()) or release(total, **kw)
    )
    step.take()
    assert torch.equal(released[0], only + 1.0)


def test_steps_end_with_the_plan(tmp_path):
    step = make_step(tmp_path, event=make_event(count=3))
    assert step.remaining == 3
    step.take(2)
    before = copy.deepcopy(step.parts()["discriminator"].state_dict())
    with pytest.raises(BudgetError, match="only 1 of the 3"):
        step.take(2)
    after = step.parts()["discriminator"].state_dict()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    step.take(1)
    assert step.remaining == 0


def test_the_discriminator_learns_to_tell_reals_from_fakes(tmp_path):
    data = tiny_data()
    bright = ImageDataset(data.name, data.domain, np.full_like(data.images, 250), data.labels)
    nets = networks()
    step = make_step(tmp_path, bright, nets, private=False, learning_rate=5e-3)
    step.take(40)
    assert step.remaining is None
    assert step.diagnostics() == {}
    labels = torch.zeros(8, dtype=torch.long)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        fakes = nets[1].pixels(nets[1](nets[1].draw_latent(8, random), labels))
        assert (nets[0](torch.full((8, 1, 8, 8), 250 / 255), labels) > nets[0](fakes, labels) + 1).all()


def test_the_generator_is_followed_when_its_weights_change(tmp_path):
    step = make_step(tmp_path, nets=(nets := networks()))
    step._draw_ahead()
    _, _, latent, labels = step._waiting[0]
    before = step._fakes.render(latent, labels).images
    with torch.no_grad():
        for weight in nets[1].parameters():
            weight.mul_(3)
    step._fakes.refresh()
    after = step._fakes.render(latent, labels).images
    assert not torch.equal(before, after)
    with torch.no_grad():
        assert torch.allclose(after, nets[1].pixels(nets[1](latent, labels)))


def test_too_many_gradients_that_are_not_finite_abort_the_run(tmp_path):
    nets = networks()
    with torch.no_grad():
        nets[0].image_layer.weight[0] = math.inf
    step = make_step(tmp_path, nets=nets)
    before = step._flat.values.clone()
    step._sum_gradients()
    assert not step._total.any()
    with pytest.raises(AbortedRun, match="not finite"):
        step.diagnostics()
    assert torch.equal(step._flat.values, before)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (make_event(sampling=PoissonSampling(rate=0.01)), "Poisson rate of 0.15"),
        (make_event(sampling=NoSampling()), "is accounted"),
    ],
)
def test_an_event_that_says_something_else_is_refused(tmp_path, event, message):
    with pytest.raises(InputError, match=message):
        make_step(tmp_path, event=event)


def test_private_steps_without_an_event_are_refused(tmp_path, monkeypatch):
    run = make_step(tmp_path)
    with pytest.raises(InputError, match="need the event"):
        DiscriminatorStep(_run_of(tmp_path / "more"), *networks(), run._settings, None)


def _run_of(folder):
    folder.mkdir()
    data = tiny_data()
    plan = Plan("test", build_config(MethodConfig, {}), data.domain, BUDGET, (), 1.0, 1, 0, 0.0, 0.0)
    return Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(), CPU)


def test_a_batch_without_reals_is_refused():
    with pytest.raises(InputError, match="batch: 0"):
        StepOptions(batch=0, clip=1.0, learning_rate=1e-3, betas=(0.5, 0.9))


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 1)

    def forward(self, images, labels):
        return self.layer(images.flatten(1) - images.flatten(1).mean(dim=0)).flatten()


def test_a_discriminator_that_mixes_examples_is_refused(tmp_path):
    with pytest.raises(InputError, match="mixes the examples"):
        make_step(tmp_path, nets=(Mixing(), networks()[1]))


def test_a_checkpoint_brings_everything_back(tmp_path):
    first, second = make_step(tmp_path / "first"), make_step(tmp_path / "second")
    first.take(3)
    for name, part in first.parts().items():
        second.parts()[name].load_state_dict(copy.deepcopy(part.state_dict()))
    update = torch.randn(first._flat.values.numel(), dtype=torch.float64)
    for step in (first, second):
        step._optimizer.step(update)
    states = [step.parts()["discriminator"].state_dict() for step in (first, second)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_captured_graph_adds_what_the_eager_code_adds(tmp_path, precision):
    """Also for a batch that does not fit into the captured places, and for an empty one."""
    step = make_step(tmp_path, device=torch.device("cuda"), runtime={"precision": precision})
    step.take(2)
    assert step._captured is not None
    step._draw_ahead()
    _, _, latent, labels = step._waiting[0]
    capacity, filler = step._capacity, step._reals.filler
    for size in (0, 3, RECORDS):
        width = -(-max(1, size) // capacity) * capacity
        indices = torch.full((width,), filler, device="cuda")
        indices[:size] = torch.arange(size, device="cuda")
        step._total.zero_()
        step._captured.replay(indices, size, (latent, labels))
        captured = step._total.clone()
        step._total.zero_()
        step._add(indices[:size], (latent, labels))
        assert float((captured - step._total).norm()) < 1e-2 * float(step._total.norm())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_replays_get_fresh_noise_and_fresh_batches(tmp_path, monkeypatch):
    step = make_step(tmp_path, device=torch.device("cuda"))
    updates = watch_updates(step, monkeypatch)
    step.take(6)
    rows = torch.stack(updates).double().cpu()
    assert len({tuple(row[:5].tolist()) for row in rows}) == 6
    noise = (rows[::2] - rows[1::2]).flatten() * (2 * BATCH) / math.sqrt(2)
    assert 0.9 * CLIP * NOISE < float(noise.std()) < 1.5 * CLIP * NOISE


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
