"""g-pate, datalens and pate-gan: their events, what they make of votes, and that they stop when votes say nothing."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from understudy.engines.learner import Drawn, Inputs
from understudy.errors import BudgetError, CheckError, InputError
from understudy.methods.base import configure
from understudy.methods.config import build_config
from understudy.methods.registry import get_method
from understudy.methods.teachers.teaching import Rehearsal, StallWatch, Teachers
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.mechanisms import BinVotes, PeakVotes, RealVotes, SignVotes

from ...helpers.cases import BUDGET, case_of
from ...helpers.data import tiny_data
from ...helpers.runs import interrupt, read_lines, tiny_train

METHODS = ("datalens", "g-pate", "pate-gan")
MANY = {"privacy": {"noise_multiplier": 40.0, "queries": 60}}  # twenty checks
STEADY = {"generator": {"width": 16, "latent": 8, "learning_rate": 1e-9}}  # never blank


def plan_of(name, **changes):
    method = get_method(name)
    return method.plan(build_config(method.config_type, case_of(name).config(**changes)), tiny_data().domain, BUDGET)


@pytest.mark.parametrize("name", METHODS)
def test_votes_cost_plain_gaussians_without_amplification(name):
    """The price is that of one Gaussian whose squared distance is the sum of all squared distances."""
    plan = plan_of(name)
    assert {event.sampling.kind for event in plan.events} == {"none"}
    assert {event.count for event in plan.events} == {12}
    mu = math.sqrt(sum(event.count / event.noise_multiplier**2 for event in plan.events))
    epsilon = plan.epsilon

    def delta(mu: float) -> float:
        law = stats.norm
        return law.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * law.cdf(-mu / 2 - epsilon / mu)

    assert delta(mu) <= BUDGET.delta < delta(mu * 1.01)


def test_a_check_and_an_answer_of_g_pate_are_both_charged_though_no_check_passes(tmp_path, monkeypatch):
    release = PeakVotes.release

    def quiet(self, tally, **options):
        answer = release(self, tally, **options)
        return type(answer)(answer.value_dp * 0, answer.event)

    monkeypatch.setattr(PeakVotes, "release", quiet)
    trained = tiny_train("g-pate", tiny_data(), tmp_path / "run")
    assert [line["confident"] for line in read_lines(tmp_path / "run" / "progress.jsonl")] == [0, 0, 0, 0]
    charged = {event.sensitivity: event.executed for event in trained.certificate.events}
    assert charged == {"sqrt(2)C": 12, "C": 12}


@pytest.mark.parametrize(("name", "kind"), [("datalens", SignVotes), ("g-pate", BinVotes), ("pate-gan", RealVotes)])
def test_the_noise_in_a_run_has_the_deviation_that_the_event_says(name, kind, tmp_path, monkeypatch):
    """What is handed out minus what was counted, over all queries of a run: its variance, two-sided at 1e-6."""
    errors, reach = [], []
    release = kind.release

    def remember(self, tally, **options):
        answer = release(self, tally, **options)
        errors.append((answer.value_dp - tally).flatten())
        reach.append(self.reach * answer.event.noise_multiplier)
        return answer

    monkeypatch.setattr(kind, "release", remember)
    tiny_train(name, tiny_data(), tmp_path / "run")
    noise = torch.cat(errors).numpy() / reach[0]
    assert set(reach) == {reach[0]}
    tail, statistic = stats.chi2(len(noise)), float((noise**2).sum())
    assert 2 * min(tail.cdf(statistic), tail.sf(statistic)) > 1e-6
    assert len(noise) == {"datalens": 12 * 64, "g-pate": 12 * 9, "pate-gan": 12}[name]


@pytest.mark.parametrize("name", METHODS)
def test_more_teachers_than_records_and_too_small_a_budget_are_refused(name):
    with pytest.raises(InputError, match="only 40 nominal records are declared"):
        plan_of(name, privacy={"teachers": 41})
    method = get_method(name)
    values = {"privacy": {"queries": 10**6, "noise_multiplier": 1e-2}}
    with pytest.raises(BudgetError, match="only 10 is allowed"):
        tiny_train(name, tiny_data(), "never", **values)
    assert method.private


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_presets_plan_within_their_budget(name):
    method = get_method(name)
    domain = tiny_data(nominal=60_000).domain
    for preset in method.presets:
        plan = method.plan(configure(method, {}, preset), domain, Budget(10, 1e-5))
        assert plan.epsilon <= 10
        again = method.plan(plan.config, domain, Budget(plan.epsilon, 1e-5))
        assert again.events == plan.events


def test_a_watch_stops_after_silence_in_a_row_and_not_before():
    watch = StallWatch(3)
    for silent in (True, True, False, True, True):
        watch.look(silent, "nothing was said")
    with pytest.raises(CheckError, match="nothing was said, so the run stops before it spends more"):
        watch.look(True, "nothing was said")


def test_pate_gan_stops_with_advice_when_all_teachers_say_fake(tmp_path, monkeypatch):
    """The known stall: no vote for real, so the student has nothing to learn."""

    def all_fake(self, pool, threshold):
        assert threshold == 0.5
        yield -torch.ones(self.subsets, len(pool.images))

    monkeypatch.setattr(Teachers, "margins", all_fake)
    monkeypatch.setattr("understudy.methods.teachers.pate_gan._SURE", math.inf)  # the noise hides everything
    monkeypatch.setattr("understudy.methods.teachers.pate_gan._UNANIMOUS", 0.5)
    with pytest.raises(CheckError, match=r"all images are (fake|real).*lower method.threshold"):
        tiny_train("pate-gan", tiny_data(), tmp_path / "run", privacy=MANY["privacy"], method={"threshold": 0.5})
    assert not (tmp_path / "run" / "release").exists()


def test_votes_of_a_few_teachers_in_much_noise_are_not_taken_for_a_stall(tmp_path):
    tiny_train("pate-gan", tiny_data(), tmp_path / "run", privacy=MANY["privacy"], method=STEADY)
    assert (tmp_path / "run" / "release").exists()


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("g-pate", {"consensus": 0.999}, "no vote reached the consensus of 0.999.*lower method.consensus"),
        ("datalens", {"threshold": 0.999}, "no entry of the noisy vote reached 0.999.*lower method.threshold"),
    ],
)
def test_votes_that_never_reach_consensus_stop_the_run_with_advice(name, setting, words, tmp_path, monkeypatch):
    kinds = {"g-pate": PeakVotes, "datalens": SignVotes}
    release = kinds[name].release

    def quiet(self, tally, **options):
        answer = release(self, tally, **options)
        return type(answer)(answer.value_dp * 0, answer.event)

    monkeypatch.setattr(kinds[name], "release", quiet)
    with pytest.raises(CheckError, match=words):
        tiny_train(name, tiny_data(), tmp_path / "run", privacy=MANY["privacy"], method=setting)
    events = [line for line in read_lines(tmp_path / "run" / "ledger.jsonl") if line["kind"] == "reserve"]
    assert sum(line["count"] for line in events if "check" not in line["purpose"]) < 60, "the rest was not spent"


def test_the_student_of_pate_gan_survives_an_interruption(tmp_path):
    interrupt("pate-gan", tiny_data(), tmp_path / "run")
    (path,) = sorted((tmp_path / "run" / "private").glob("checkpoint-*.safetensors"))[-1:]
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        assert any(name.startswith("student.") for name in file.keys())  # noqa: SIM118 (not a mapping)


def test_a_unanimous_vote_has_length_one_whatever_is_kept():
    """DataLens scales a vote of all teachers to length one: noise and pulls are measured against it."""
    from understudy.methods.teachers.datalens import SignLesson

    lesson = SignLesson.__new__(SignLesson)
    lesson._kept, lesson.top = [], 5
    for threshold in (0.0, 0.5):
        changes = {"method": {"threshold": threshold}}
        lesson.config = plan_of("datalens", **changes).config
        share = torch.zeros(2, 64)
        share[:, :5] = 1.0
        assert lesson._followed(share).norm(dim=1).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("name", METHODS)
def test_epsilon_does_not_depend_on_what_the_teachers_say(name, tmp_path):
    first = tiny_train(name, tiny_data(seed=1), tmp_path / "one")
    second = tiny_train(name, tiny_data(seed=2), tmp_path / "two")
    assert first.certificate.headline == second.certificate.headline
    assert accounting.epsilon(first.certificate.events, 1e-5) <= first.certificate.headline.epsilon


class Listener:
    """Stands for a generator: draws what it is told and remembers what it was taught."""

    def __init__(self):
        self.taught = []

    def render(self, inputs):
        assert len(inputs.latent) == len(inputs.labels)
        return Drawn(inputs.latent, inputs.labels, inputs)

    def learn(self, drawn, slopes):
        self.taught.append((drawn.values, drawn.labels, slopes))


@pytest.mark.parametrize("labelled", [True, False])
def test_a_generator_rehearses_the_latest_answers_with_their_own_questions(labelled):
    learner, rehearsal = Listener(), Rehearsal(memory=2)
    for number in range(3):
        inputs = Inputs(torch.full((1, 4), float(number)), torch.tensor([number if labelled else 0]))
        drawn = Drawn(inputs.latent, inputs.labels if labelled else None, inputs)
        rehearsal.learn(learner, drawn, torch.full((1, 9), 10.0 * number))
    sizes = [len(values) for values, _, _ in learner.taught]
    assert sizes == [1, 2, 2]
    values, labels, slopes = learner.taught[-1]
    assert values[:, 0].tolist() == [1.0, 2.0]
    assert slopes[:, 0].tolist() == [10.0, 20.0]
    assert labels.tolist() == ([1, 2] if labelled else [0, 0])
