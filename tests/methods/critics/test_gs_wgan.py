"""gs-wgan: the routing is secret, uniform and touches nothing but answers; the published algorithm is told as it is."""

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.api import resume
from understudy.data.domain import Domain
from understudy.engines.critics.panel import Critics, FakePool
from understudy.engines.embedding.means import distance
from understudy.engines.embedding.start import EmbeddingStart
from understudy.engines.learner import SlopeLearner
from understudy.errors import CheckError, InputError, InterruptedRun
from understudy.methods.base import configure
from understudy.methods.config import apply_settings, build_config
from understudy.methods.critics import gs_wgan
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, case_of
from ...helpers.data import tiny_data
from ...helpers.runs import tiny_train

FALSE_ALARM = 1e-6
MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)


def make_run(folder, seed=None, **settings):
    case, data = case_of("gs-wgan"), tiny_data()
    config = build_config(
        gs_wgan.GsWganConfig, apply_settings(case.config(), [f"{k}={v}" for k, v in settings.items()])
    )
    plan = get_method("gs-wgan").plan(config, data.domain, BUDGET)
    folder.mkdir()
    ledger = Ledger.create(folder / "ledger.jsonl")
    return Run(folder, plan, data, ledger, Randomness(seed), torch.device("cpu"))


def make_panel(run):
    panel = Critics.of_run(run, run.plan.config.privacy.subsets, run.plan.config.method.critics)
    panel.warm_start()
    return panel


def pool(size=16):
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (size,), generator=random)
    return FakePool(torch.rand(size, 1, 8, 8, generator=random), labels)


def state_bytes(panel):
    return {name: tensor.numpy().tobytes() for name, tensor in panel.bank.state().items()}


class TestRouting:
    def test_each_query_is_routed_uniformly_over_all_critics(self, tmp_path):
        """Chi-square over 4 critics, 40,000 draws; false-alarm rate 1e-6."""
        panel = make_panel(make_run(tmp_path / "run"))
        counts = np.bincount(panel.draw_routing(40_000).numpy(), minlength=4)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM

    def test_queries_of_one_step_are_routed_independently(self, tmp_path):
        """Contingency of the first and second query of 20,000 steps; false-alarm rate 1e-6. A shared draw fails it."""
        panel = make_panel(make_run(tmp_path / "run"))
        pairs = panel.draw_routing(40_000).view(-1, 2).numpy()
        table = np.zeros((4, 4))
        np.add.at(table, (pairs[:, 0], pairs[:, 1]), 1)
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
        shared = np.diag(np.bincount(pairs[:, 0], minlength=4)) + 1
        assert stats.chi2_contingency(shared).pvalue < FALSE_ALARM

    def test_routing_is_independent_of_the_critics_schedule(self, tmp_path):
        """Routing by scheduled block, over 600 steps of 32 queries; false-alarm rate 1e-6."""
        panel = make_panel(make_run(tmp_path / "run"))
        table = np.zeros((4, 4))
        for _ in range(600):
            scheduled = panel._next
            panel._next = (panel._next + 3) % 4
            np.add.at(table[scheduled], panel.draw_routing(32).numpy(), 1)
        assert stats.chi2_contingency(table[table.sum(1) > 0]).pvalue > FALSE_ALARM

    def test_asking_changes_no_byte_of_any_critic(self, tmp_path):
        panel = make_panel(make_run(tmp_path / "run"))
        before = state_bytes(panel)
        for critic in range(4):
            panel.answer(pool(), torch.full((16,), critic))
        assert state_bytes(panel) == before

    def test_what_critics_learn_does_not_depend_on_who_was_asked(self, tmp_path):
        states = []
        for name, critic in (("a", 0), ("b", 3)):
            panel = make_panel(make_run(tmp_path / name, seed=7))
            for _ in range(3):
                panel.train_scheduled(pool())
                panel.answer(pool(), torch.full((16,), critic))
            states.append(state_bytes(panel))
        assert states[0] == states[1]

    def test_the_schedule_visits_every_critic_in_turn(self, tmp_path):
        panel = make_panel(make_run(tmp_path / "run"))
        before = panel.bank.steps.clone()
        for _ in range(4):
            panel.train_scheduled(pool())
        active = panel.bank.active
        assert (panel.bank.steps - before)[active].tolist() == [2.0] * int(active.sum())


def test_every_answer_carries_noise_of_its_own(tmp_path):
    run = make_run(tmp_path / "run")
    answering = gs_wgan._answering(run, run.plan.config)
    answers = answering.answer(torch.zeros(32, 64)).value_dp.double()
    deviation = 2 * run.plan.config.privacy.clip * run.plan.config.privacy.noise_multiplier
    for row in answers:
        statistic = float((row / deviation).square().sum())
        assert 2 * min(stats.chi2(64).cdf(statistic), stats.chi2(64).sf(statistic)) > FALSE_ALARM / 32
    assert len({row.numpy().tobytes() for row in answers}) == 32


class TestPlan:
    def test_the_default_plan_on_mnist_is_the_published_scale_at_a_true_epsilon(self):
        config = build_config(gs_wgan.GsWganConfig, {"privacy": {"embedding_share": 0}})
        plan = get_method("gs-wgan").plan(config, MNIST, Budget(10, 1e-5))
        (event,) = plan.events
        assert (event.sampling.subsets, event.count, event.sensitivity) == (1000, 640_000, "2C")
        assert event.noise_multiplier == pytest.approx(0.8155, abs=2e-3)
        assert plan.epsilon <= 10

    def test_the_published_algorithm_costs_610_and_its_own_figure_is_named_as_what_it_is(self):
        method = get_method("gs-wgan")
        plan = method.plan(configure(method, {}, "published"), MNIST, Budget(1000, 1e-5))
        assert plan.epsilon == pytest.approx(610, abs=1)
        (remark,) = plan.remarks
        assert "9.99" in remark
        assert "not a guarantee" in remark

    @pytest.mark.parametrize(("preset", "events", "output"), [("random-start", 1, "clamp"), ("gpu", 2, "sigmoid")])
    def test_an_embedding_costs_an_event_and_allows_a_sigmoid(self, preset, events, output):
        """Under noise a sigmoid that starts from random weights goes black; only an embedding keeps it alive."""
        method = get_method("gs-wgan")
        plan = method.plan(configure(method, {}, preset), MNIST, Budget(10, 1e-5))
        assert len(plan.events) == events
        assert plan.config.method.generator.output == output
        assert plan.epsilon <= 10

    def test_more_subsets_than_declared_records_are_refused(self):
        config = build_config(gs_wgan.GsWganConfig, {"privacy": {"subsets": 60_001}})
        with pytest.raises(InputError, match="only 60000 nominal records"):
            get_method("gs-wgan").plan(config, MNIST, Budget(10, 1e-5))


class TestBlankGenerators:
    def player(self, folder):
        run = make_run(folder)
        return SlopeLearner(run, run.plan.config.method.generator)

    @pytest.mark.parametrize(
        "images",
        [torch.zeros(32, 1, 8, 8), torch.ones(32, 1, 8, 8), torch.rand(1, 1, 8, 8).repeat(32, 1, 1, 1)],
        ids=["black", "white", "always the same image"],
    )
    def test_a_dead_generator_stops_the_run_with_advice(self, tmp_path, images):
        player = self.player(tmp_path / "run")
        for _ in range(4):
            player.check_alive(images)
        with pytest.raises(CheckError, match=r"blank or all alike.*lower method"):
            player.check_alive(images)

    def test_one_good_look_resets_the_count(self, tmp_path):
        player = self.player(tmp_path / "run")
        for _ in range(3):
            for _ in range(4):
                player.check_alive(torch.zeros(32, 1, 8, 8))
            assert player.check_alive(torch.rand(32, 1, 8, 8)) > 0.1


def test_raw_values_outside_the_range_are_pulled_back_and_the_gradient_passes_the_cut(tmp_path):
    """The output cannot saturate: far outside [0, 1] the generator still moves."""
    run = make_run(tmp_path / "run", **{"method.generator.output": "clamp"})
    player = SlopeLearner(run, run.plan.config.method.generator)
    with torch.no_grad():
        for parameter in player.live.body[-1].parameters():
            parameter.fill_(5.0)
    drawn = player.imagine(8)
    assert drawn.values.min() > 1
    before = [parameter.detach().clone() for parameter in player.live.parameters()]
    player.learn(drawn, torch.zeros(8, 64))
    assert any(not torch.equal(old, new) for old, new in zip(before, player.live.parameters(), strict=True))


def release_start(run):
    return EmbeddingStart.of_run(run, run.plan.config.method.embedding)


class TestStart:
    """A released embedding is where the generator starts, what it is held to, and its law of labels."""

    def player(self, folder, **settings):
        run = make_run(folder, **settings)
        start = release_start(run)
        return run, SlopeLearner(run, run.plan.config.method.generator, start)

    def test_moving_images_against_the_slopes_brings_their_means_closer(self, tmp_path):
        _, player = self.player(tmp_path / "run")
        images, labels = torch.rand(30, 1, 8, 8), torch.arange(30) % 3
        embedding, means = player.start.embedding, player.start.means
        before = distance(images, labels, embedding, means)
        moved = images - 1e-3 * player.start.slopes(images, labels)
        assert distance(moved, labels, embedding, means) < before

    def test_slopes_do_not_depend_on_how_many_images_are_drawn(self, tmp_path):
        """Each image twice is the same distribution, so each copy is pulled as the one was (up to the bias term)."""
        _, player = self.player(tmp_path / "run")
        images, labels = torch.rand(300, 1, 8, 8), torch.arange(300) % 3
        once = player.start.slopes(images, labels)
        twice = player.start.slopes(images.repeat(2, 1, 1, 1), labels.repeat(2))
        assert torch.allclose(twice[:300], once, rtol=0.1, atol=0.05 * float(once.abs().max()))

    @pytest.mark.parametrize("pull", [0.0, 100.0])
    def test_without_answers_only_the_pull_moves_the_generator(self, tmp_path, pull):
        _, player = self.player(tmp_path / "run", **{"method.generator.embedding_pull": pull})
        before = [parameter.detach().clone() for parameter in player.live.parameters()]
        player.learn(player.imagine(32), torch.zeros(32, 64))
        moved = any(not torch.equal(old, new) for old, new in zip(before, player.live.parameters(), strict=True))
        assert moved == (pull > 0)

    def test_the_law_of_labels_is_the_released_one(self, tmp_path):
        run, player = self.player(tmp_path / "run")
        assert player.released.config == player.start.means.inform(player.released.config)
        assert run.ledger.account(run.plan.events[1]).reserved == 1

    def test_asking_for_the_start_again_costs_nothing_and_gives_the_same(self, tmp_path):
        run, player = self.player(tmp_path / "run")
        again = release_start(run)
        assert torch.equal(again.means.means_dp, player.start.means.means_dp)
        assert run.ledger.account(run.plan.events[1]).reserved == 1

    def test_a_run_stopped_while_it_fits_the_start_pays_for_the_embedding_once(self, tmp_path):
        seen = []
        with pytest.raises(InterruptedRun):
            tiny_train(
                "gs-wgan", tiny_data(), tmp_path / "run", listener=seen.append, stop_requested=lambda: bool(seen)
            )
        assert "embedding_loss" in seen[-1].values
        released = (tmp_path / "run" / "private" / "embedding.safetensors").read_bytes()
        events = resume(tiny_data(), tmp_path / "run").certificate.events
        assert [event.executed for event in events if event.sampling.kind == "none"] == [1]
        assert (tmp_path / "run" / "private" / "embedding.safetensors").read_bytes() == released
