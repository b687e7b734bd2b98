"""A routed turn of gs-wgan: a draw for every image, and critics that learn the same whoever is asked."""

from __future__ import annotations

import pytest
import torch

from understudy.engines.learner import SlopeLearner
from understudy.methods.critics import gs_wgan

from .test_gs_wgan import make_panel, make_run, pool, state_bytes

QUERIES, TURNS = 8, 3


def players(folder, seed=7):
    torch.manual_seed(seed)  # first weights of the generator
    run = make_run(folder, seed=seed)
    panel = make_panel(run)
    return SlopeLearner(run, run.plan.config.method.generator), panel, run.plan.config.method


@pytest.mark.parametrize("routing", [[3, 2, 1, 0, 3, 2, 1, 0], [1] * 8], ids=["another order", "all to one critic"])
def test_no_critic_learns_anything_from_the_routing(routing, tmp_path, monkeypatch):
    """Turns with another routing leave the same bank, byte for byte."""
    found = []
    for name, drawn in (("first", [0, 1, 2, 3, 0, 1, 2, 3]), ("second", routing)):
        player, panel, settings = players(tmp_path / name)
        monkeypatch.setattr(panel, "draw_routing", lambda count, drawn=drawn: torch.tensor(drawn)[:count])
        for _ in range(TURNS):
            gs_wgan._routed_turn(player, panel, settings)
        found.append(state_bytes(panel))
    assert found[0] == found[1]


def test_every_image_has_a_draw_of_its_own(tmp_path, monkeypatch):
    """One draw for each query, and the critic that was drawn is the one that answers."""
    player, panel, settings = players(tmp_path / "run")
    drawn = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    counts, asked = [], []

    def draw_routing(count):
        counts.append(count)
        return drawn[:count]

    answer = panel.answer
    monkeypatch.setattr(panel, "draw_routing", draw_routing)
    monkeypatch.setattr(panel, "answer", lambda images, routing: asked.append(routing) or answer(images, routing))
    gs_wgan._routed_turn(player, panel, settings)
    assert counts == [QUERIES]
    assert torch.equal(asked[0], drawn)


def test_answers_come_in_the_order_of_the_images(tmp_path):
    """What a critic says about an image is the same alone and among others, at the place of the image."""
    _, panel, _ = players(tmp_path / "run")
    images, routing = pool(QUERIES), torch.tensor([3, 0, 2, 1, 3, 0, 1, 2])
    together = panel.answer(images, routing)
    for place in range(QUERIES):
        one = type(images)(images.images[place : place + 1], images.labels[place : place + 1])
        alone = panel.answer(one, routing[place : place + 1])
        assert torch.allclose(together[place], alone[0], atol=1e-6)


def test_all_images_of_a_turn_are_shown_to_the_scheduled_critics(tmp_path, monkeypatch):
    player, panel, settings = players(tmp_path / "run")
    shown = []
    train = panel.train_scheduled
    monkeypatch.setattr(panel, "train_scheduled", lambda given: shown.append(given) or train(given))
    drawn, rows = gs_wgan._routed_turn(player, panel, settings)
    assert len(shown) == 1
    assert torch.equal(shown[0].images, drawn.pool.images)
    assert rows.shape == (QUERIES, 64)
