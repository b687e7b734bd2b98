"""The discriminator's side: reals and fakes in one private step, and a copy of the generator that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from understudy.data.dataset import ImageDataset
from understudy.engines.dpsgd.step import PrivateStep, StepOptions
from understudy.errors import BudgetError, InputError
from understudy.methods.adversarial.discriminator import Fakes, adversary_losses, discriminator_step
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig, DpganGenerator
from understudy.models.generator import GeneratorConfig

from ...engines.dpsgd.networks import clip_slowly, rows_one_at_a_time
from ...engines.dpsgd.steps import ALMOST_NONE, BATCH, CLIP, STILL, Mixing, close, make_event, make_run
from ...helpers.cases import RECORDS
from ...helpers.data import tiny_data


def networks(kind: str = "labelled") -> tuple[DpganDiscriminator, DpganGenerator]:
    classes = None if kind == "unlabelled" else 3
    shape = (3 if kind == "rgb" else 1, 8, 8)
    discriminator = DpganDiscriminator(DpganDiscriminatorConfig(shape=shape, classes=classes, width=4))
    return discriminator, DpganGenerator(GeneratorConfig(kind="dpgan", shape=shape, classes=classes, latent=3, width=4))


def make_step(
    folder: Path, data: ImageDataset, nets: tuple[nn.Module, DpganGenerator], loss: str = "logistic", **changes: Any
) -> tuple[PrivateStep, list[torch.Tensor]]:
    """A step and the sanitized sums that it will release."""
    event = changes.pop("event", make_event(noise_multiplier=ALMOST_NONE))
    options = StepOptions(**{"batch": BATCH, "clip": CLIP, "learning_rate": 1e-3, "betas": (0.5, 0.999), **changes})
    event = event if options.private else None
    run, sums = make_run(folder, data, event), []
    run.ledger.witness = lambda _, value_dp: sums.append(value_dp.clone())
    return discriminator_step(run, *nets, options, loss, event), sums


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
@pytest.mark.parametrize("loss", ["logistic", "wasserstein"])
def test_the_sum_is_that_of_all_reals_and_of_exactly_as_many_fakes_as_expected_reals(tmp_path, kind, loss):
    """A rate of one draws every record; what the fakes are made from is seen as it is drawn."""
    data, nets, drawn = tiny_data(kind), networks(kind), []
    original = nets[1].draw_latent, nets[1].draw_labels
    nets[1].draw_latent = lambda *given: drawn.append(original[0](*given)) or drawn[-1]
    nets[1].draw_labels = lambda *given: drawn.append(original[1](*given)) or drawn[-1]
    event = make_event(noise_multiplier=ALMOST_NONE, sampling={"kind": "poisson", "rate": 1.0})
    step, sums = make_step(tmp_path, data, nets, loss, batch=RECORDS, event=event, **STILL)
    step.take()
    latent, labels = (part[-RECORDS:] for part in drawn[-2:])  # of the step that was taken: the last one drawn ahead
    with torch.no_grad():
        fakes = nets[1].pixels(nets[1](latent, labels))
    reals = torch.from_numpy(data.images) / 255
    own = None if data.labels is None else torch.from_numpy(data.labels)
    total = torch.zeros(())
    for sign, images, named in ((1.0, reals, own), (-1.0, fakes, None if own is None else labels)):

        def losses(logits: torch.Tensor, sign: float = sign) -> torch.Tensor:
            return nn.functional.softplus(-sign * logits) if loss == "logistic" else -sign * logits

        rows = rows_one_at_a_time(nets[0], (images, named), losses)
        total = total + clip_slowly(rows, CLIP).sum(dim=0)
    assert close(sums[0], total)
    assert close(2 * RECORDS * step.optimizer.state_dict()["first"], total)


def test_the_discriminator_learns_to_tell_reals_from_fakes(tmp_path):
    data, nets = tiny_data(), networks()
    bright = ImageDataset(data.name, data.domain, np.full_like(data.images, 250), data.labels)
    step, _ = make_step(tmp_path, bright, nets, private=False, learning_rate=5e-3)
    step.take(40)
    labels = torch.zeros(8, dtype=torch.long)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        fakes = nets[1].pixels(nets[1](nets[1].draw_latent(8, random), labels))
        assert (nets[0](torch.full((8, 1, 8, 8), 250 / 255), labels) > nets[0](fakes, labels) + 1).all()


def test_the_generator_is_followed_when_its_weights_change(tmp_path):
    generator = networks()[1]
    fakes = Fakes(make_run(tmp_path, tiny_data(), make_event()), generator, BATCH)
    drawn = fakes.draw(BATCH, torch.Generator().manual_seed(1))
    before = fakes.render(*drawn).images
    with torch.no_grad():
        for weight in generator.parameters():
            weight.mul_(3)
    after = fakes.render(*drawn).images
    assert not torch.equal(before, after)
    with torch.no_grad():
        assert torch.allclose(after, generator.pixels(generator(*drawn)))


def test_all_fakes_count_and_carry_labels_only_beside_labelled_records(tmp_path):
    for kind in ("labelled", "unlabelled"):
        fakes = Fakes(make_run(tmp_path / kind, tiny_data(kind), make_event()), networks(kind)[1], BATCH)
        shown = fakes.render(*fakes.draw(BATCH, torch.Generator()))
        assert shown.present.tolist() == [True] * BATCH
        assert shown.signs.tolist() == [-1.0] * BATCH
        assert (shown.labels is None) == (kind == "unlabelled")


def test_losses_pull_reals_up_and_fakes_down():
    signs, logits = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 3.0])
    assert adversary_losses("wasserstein", signs, logits).tolist() == [-2.0, 3.0]
    expected = -torch.stack([logits[0].sigmoid().log(), (-logits[1]).sigmoid().log()])
    assert torch.allclose(adversary_losses("logistic", signs, logits), expected)


def test_a_discriminator_that_mixes_examples_is_refused(tmp_path):
    with pytest.raises(InputError, match="mixes the examples"):
        make_step(tmp_path, tiny_data(), (Mixing(), networks()[1]))


def test_steps_beyond_the_plan_are_refused_by_the_name_of_what_they_are_for(tmp_path):
    event = make_event(count=3, purpose="discriminator steps")
    step, _ = make_step(tmp_path, tiny_data(), networks(), event=event)
    with pytest.raises(BudgetError, match="4 more discriminator steps were asked for, but only 3 of the 3 planned"):
        step.take(4)
