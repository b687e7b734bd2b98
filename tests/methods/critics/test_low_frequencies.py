"""gs-wgan with answers in low frequencies and several queries for an image: the same events, sanitized there."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from understudy.api import TrainOptions, train
from understudy.data.sources import load
from understudy.engines.critics.frequencies import AnswerBasis
from understudy.engines.learner import SlopeLearner
from understudy.errors import InputError
from understudy.methods.base import configure
from understudy.methods.config import build_config
from understudy.methods.critics import gs_wgan
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, RoutedSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianAnswers
from understudy.privacy.randomness.streams import Randomness
from understudy.release.verify import verify

from ...helpers.cases import BUDGET
from ...helpers.data import tiny_data
from ...helpers.runs import tiny_train
from .test_gs_wgan import MNIST, make_panel, make_run, state_bytes

FALSE_ALARM = 1e-6
SHAPE, PIXELS, CLIP, NOISE = (1, 28, 28), 784, 0.1, 0.8


def mechanism(folder, queries, seed=None):
    event = Event(
        noise_multiplier=NOISE, sampling=RoutedSampling(subsets=10), sensitivity="2C", count=queries, purpose="answers"
    )
    return GaussianAnswers(Ledger.create(folder / "ledger.jsonl"), Randomness(seed), clip=CLIP, event=event)


def heard(folder, rows, side, images=None, seed=None):
    """What a generator hears of unsanitized answers, and what was spent for it."""
    answering = mechanism(folder, len(rows), seed)
    images = len(rows) if images is None else images
    slopes = gs_wgan._sanitized(answering, rows, AnswerBasis(SHAPE, side), images, 1)
    return slopes, answering.account.reserved


def clipped(folder, rows, side, monkeypatch, images=None):
    """What is noised: the values that a mechanism holds before it adds its noise."""
    seen = []

    def without_noise(self, exact, deviation):
        seen.append((exact.clone(), deviation))
        return exact.double()

    monkeypatch.setattr(GaussianAnswers, "_noisy", without_noise)
    slopes, _ = heard(folder, rows, side, images)
    ((exact, deviation),) = seen
    return exact, deviation, slopes


# The law of what is heard


def p_values(sample, deviation):
    """Of 'independent Normal(0, deviation^2)', two-sided: by the sum of squares, and by the shape."""
    law = stats.chi2(len(sample))
    statistic = float(((sample / deviation) ** 2).sum())
    return 2 * min(law.cdf(statistic), law.sf(statistic)), stats.kstest(sample / deviation, "norm").pvalue


@pytest.mark.parametrize("side", [4, 8, 28])
@pytest.mark.parametrize("queries", [1, 4])
def test_noise_has_its_full_deviation_in_every_kept_frequency_and_none_elsewhere(tmp_path, side, queries):
    """Both tests at 1e-6, seeded; in units of the clip bound. An average of q answers has a q-th of the variance.

    Noise that is scaled down with the number of values, as its length is, would be seen.
    """
    images = 40_000 // side**2
    slopes, spent = heard(tmp_path, torch.zeros(images * queries, PIXELS), side, images, seed=5)
    assert spent == images * queries
    values = AnswerBasis(SHAPE, 28).project(slopes).view(-1, 28, 28)
    kept = values[:, :side, :side].flatten().numpy()
    deviation = 2 * NOISE / math.sqrt(queries)
    assert min(p_values(kept, deviation)) > FALSE_ALARM
    assert min(p_values(kept, deviation * 0.95)) < FALSE_ALARM
    left_out = values.clone()
    left_out[:, :side, :side] = 0
    assert float(left_out.abs().max()) < 1e-5


def test_pixels_of_one_answer_are_no_longer_independent_but_answers_are(tmp_path):
    """Noise in 16 frequencies is coarse: neighbouring pixels go together, two answers do not (1e-6, seeded)."""
    slopes, _ = heard(tmp_path, torch.zeros(400, PIXELS), 4, seed=6)
    pixels = slopes.view(-1, 28, 28)
    assert float((pixels[:, :, 1:] * pixels[:, :, :-1]).mean() / pixels.square().mean()) > 0.9
    values = AnswerBasis(SHAPE, 4).project(slopes) / (2 * NOISE)
    related = (values[:200] * values[200:]).sum() / math.sqrt(values[:200].numel())
    assert abs(float(related)) < stats.norm.isf(FALSE_ALARM / 2)


# Sensitivity


def adversarial():
    spike, checks = torch.zeros(PIXELS), (torch.arange(PIXELS) % 2 * 2.0 - 1)
    spike[400] = 3e38
    flat, inverted = torch.full((PIXELS,), 1e6), torch.full((PIXELS,), -1e6)
    lowest = torch.ones(PIXELS) / 28 * CLIP  # just as long as the bound, all of it in the lowest frequency
    return {
        "zero": torch.zeros(PIXELS),
        "huge": torch.full((PIXELS,), torch.finfo(torch.float32).max),
        "a huge pixel": spike,
        "flat": flat,
        "the opposite": inverted,
        "all in the lowest frequency": lowest,
        "all of it fine": 1e8 * checks,
        "tiny": torch.full((PIXELS,), 1e-38),
        "nan": torch.full((PIXELS,), float("nan")),
        "one nan": torch.cat([torch.tensor([float("nan")]), torch.ones(PIXELS - 1)]),
        "infinite": torch.full((PIXELS,), float("inf")),
        "infinite both ways": checks * float("inf"),
    }


@pytest.mark.parametrize("side", [1, 8, 28])
def test_any_two_answers_are_at_most_two_bounds_apart_whatever_the_gradients_hold(tmp_path, side, monkeypatch):
    rows = torch.stack(list(adversarial().values()))
    exact, deviation, slopes = clipped(tmp_path, rows, side, monkeypatch)
    assert exact.shape == (len(rows), side**2)
    assert torch.isfinite(exact).all()
    assert float(exact.double().norm(dim=1).max()) <= CLIP
    assert float(torch.cdist(exact.double(), exact.double()).max()) <= 2 * CLIP
    assert deviation == pytest.approx(2 * CLIP * NOISE)
    named = dict(zip(adversarial(), slopes, strict=True))
    assert all(not named[name].any() for name in adversarial() if "nan" in name or "infinite" in name or name == "zero")
    assert float((named["flat"] + named["the opposite"]).abs().max()) < 1e-6
    assert float(named["flat"].norm()) == pytest.approx(1, abs=1e-5), "as long as the bound allows, within the basis"


def test_broken_gradients_are_counted_and_stop_a_run(tmp_path):
    from understudy.errors import AbortedRun

    answering, rows = mechanism(tmp_path, 8), torch.ones(8, PIXELS)
    rows[3, 5] = float("nan")
    gs_wgan._sanitized(answering, rows, AnswerBasis(SHAPE, 8), 8, 1)
    with pytest.raises(AbortedRun, match="not finite"):
        answering.check_finite()


def test_every_query_of_an_image_is_clipped_for_itself_before_any_average(tmp_path, monkeypatch):
    """Four critics that shout one way and one that whispers the other: each counts as one bounded answer."""
    loud, quiet = torch.full((PIXELS,), 1e9), torch.full((PIXELS,), -1e9)
    rows = torch.stack([loud, loud, loud, quiet, quiet, quiet, quiet, quiet])
    exact, _, slopes = clipped(tmp_path, rows, 8, monkeypatch, images=2)
    assert len(exact) == 8
    assert torch.allclose(exact.norm(dim=1), torch.full((8,), CLIP, dtype=exact.dtype), rtol=1e-5)
    assert torch.allclose(slopes.norm(dim=1), torch.tensor([0.5, 1.0]), atol=1e-5)


# Routing and events


def test_every_query_has_a_draw_of_its_own_and_an_image_has_several(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", seed=7, **{"method.queries_per_point": 4})
    panel, learner = make_panel(run), SlopeLearner(run, run.plan.config.method.generator)
    counts, shown, draw = [], [], panel.draw_routing
    train_scheduled = panel.train_scheduled
    monkeypatch.setattr(panel, "draw_routing", lambda count: counts.append(count) or draw(count))
    monkeypatch.setattr(panel, "train_scheduled", lambda pool: shown.append(pool) or train_scheduled(pool))
    drawn, rows = gs_wgan._routed_turn(learner, panel, run.plan.config.method)
    assert counts == [8]
    assert (len(drawn.values), len(shown[0].images), len(rows)) == (2, 2, 8)


@pytest.mark.parametrize("routing", [[3, 2, 1, 0, 3, 2, 1, 0], [1] * 8], ids=["another order", "all to one critic"])
def test_no_critic_learns_anything_from_the_routing_of_several_queries(routing, tmp_path, monkeypatch):
    found = []
    for name, drawn in (("first", [0, 1, 2, 3, 0, 1, 2, 3]), ("second", routing)):
        torch.manual_seed(7)  # first weights of the generator
        run = make_run(tmp_path / name, seed=7, **{"method.queries_per_point": 2})
        panel, learner = make_panel(run), SlopeLearner(run, run.plan.config.method.generator)
        monkeypatch.setattr(panel, "draw_routing", lambda count, drawn=drawn: torch.tensor(drawn)[:count])
        for _ in range(2):
            gs_wgan._routed_turn(learner, panel, run.plan.config.method)
        found.append(state_bytes(panel))
    assert found[0] == found[1]


def test_neither_basis_nor_averages_change_an_event():
    def plan(**method):
        privacy = {"embedding_share": 0, "noise_multiplier": 10}
        config = build_config(gs_wgan.GsWganConfig, {"privacy": privacy, "method": method})
        return get_method("gs-wgan").plan(config, MNIST, Budget(10, 1e-5))

    usual = plan()
    for other in (plan(low_frequencies=[8]), plan(low_frequencies=[6, 10, 28], queries_per_point=4)):
        assert (other.events, other.epsilon, other.steps) == (usual.events, usual.epsilon, usual.steps)


# Settings


def test_without_new_settings_a_config_is_written_as_before():
    written = gs_wgan.GsWganConfig().model_dump(mode="json")
    assert not {"low_frequencies", "queries_per_point"} & written["method"].keys()
    assert not {"first_decay", "second_decay"} & written["method"]["generator"].keys()
    chosen = {"low_frequencies": [4, 8], "queries_per_point": 2, "generator": {"first_decay": 0.9}}
    config = build_config(gs_wgan.GsWganConfig, {"method": chosen})
    again = build_config(gs_wgan.GsWganConfig, config.model_dump(mode="json"), exact=True)
    assert again == config
    assert again.method.low_frequencies == (4, 8)
    assert again.method.generator.first_decay == 0.9


def test_the_generator_learns_with_the_decays_that_were_set(tmp_path):
    for number, (first, second) in enumerate([(0.5, 0.9), (0.9, 0.99)]):
        settings = {"method.generator.first_decay": first, "method.generator.second_decay": second}
        run = make_run(tmp_path / str(number), **settings)
        learner = SlopeLearner(run, run.plan.config.method.generator)
        assert learner._optimizer.param_groups[0]["betas"] == (first, second)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"low_frequencies": [8, 29]}, r"low_frequencies: 29, but images of 28x28 have 28 on a side; .* at most 28"),
        ({"low_frequencies": [0]}, "low_frequencies.0: 0"),
        ({"low_frequencies": 8}, "low_frequencies: 8"),
        ({"queries_per_point": 3}, r"queries_per_point: 3, but the 512 queries of a step .* pass a method.queries_per"),
        ({"queries_per_point": 0}, "queries_per_point: 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_way_out(method, message):
    with pytest.raises(InputError, match=message):
        get_method("gs-wgan").plan(configure(get_method("gs-wgan"), {"method": method}), MNIST, BUDGET)


# Whole runs


def test_low_frequencies_train_on_the_digits_and_verify(tmp_path):
    config = {
        "privacy": {"subsets": 10, "queries": 128, "embedding_share": 0.0, "noise_multiplier": 10.0},
        "method": {
            "queries_per_step": 32,
            "queries_per_point": 2,
            "low_frequencies": [2, 4, 8],
            "critics": {"per_step": 5, "batch": 8, "width": 8, "warm_iterations": 1},
            "generator": {"width": 4, "latent": 4, "first_decay": 0.9},
        },
        "runtime": {"device": "cpu"},
    }
    release = train("gs-wgan", load("digits"), Budget(10, 1e-5), tmp_path / "run", TrainOptions(config=config))
    assert release.sample(4)[0].shape == (4, 8, 8)
    (event,) = release.certificate.events
    assert (event.executed, event.sampling.subsets) == (128, 10)
    assert verify(tmp_path / "run").passed
    assert release.method_config["method"]["low_frequencies"] == [2, 4, 8]


def test_each_stage_is_heard_in_its_own_frequencies(tmp_path, monkeypatch):
    """The whole loop: four steps in two stages, and what the generator is told has as many values as its stage."""
    told, learn = [], SlopeLearner.learn
    monkeypatch.setattr(
        SlopeLearner, "learn", lambda self, drawn, slopes: told.append(slopes.clone()) or learn(self, drawn, slopes)
    )
    settings = {"low_frequencies": [2, 5], "queries_per_point": 2, "queries_per_step": 16}
    tiny_train("gs-wgan", tiny_data(), tmp_path / "run", privacy={"queries": 64}, method=settings)
    assert [len(slopes) for slopes in told] == [8] * 4
    assert [int(torch.linalg.matrix_rank(slopes.double(), rtol=1e-5)) for slopes in told] == [4, 4, 8, 8]
    fine = AnswerBasis((1, 8, 8), 8).project(told[-1]).view(-1, 8, 8)
    assert float(fine[:, 5:].abs().max()) < 1e-4 < float(fine[:, 4, 4].abs().max())
