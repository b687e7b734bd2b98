"""dp-diffusion: what its presets and starts cost, what is refused, and that a run does what its plan says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.api import TrainOptions, release_early, resume, train
from understudy.data.arrays import from_arrays
from understudy.data.domain import Domain
from understudy.errors import InputError, InterruptedRun
from understudy.methods.base import configure
from understudy.methods.config import build_config
from understudy.methods.diffusion.denoising import Denoising
from understudy.methods.diffusion.dp_diffusion import CENTRAL_IMAGES, DpDiffusionConfig
from understudy.methods.diffusion.learner import Denoiser
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.events import CLASS_MEANS, Event, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.release.release import load as load_release
from understudy.release.verify import verify

from ...helpers.data import tiny_data
from ...helpers.runs import read_lines, tiny_train
from ...release.building import edit_config

MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)
DIGITS = Domain(shape=(1, 8, 8), classes=10, nominal_records=1437)
METHOD = get_method("dp-diffusion")
ONCE: dict[str, Any] = {"sensitivity": "C", "count": 1}
GIVEN = {"noise_multiplier": 10.0}  # nothing to calibrate


def plan_of(
    preset: str | None = None, domain: Domain = MNIST, epsilon: float = 10.0, **changes: dict[str, Any]
) -> Plan:
    return METHOD.plan(configure(METHOD, changes, preset), domain, Budget(epsilon, 1e-5))


# What it costs


PRESETS = {
    "gpu": CLASS_MEANS,
    "gpu-eps1": CLASS_MEANS,
    "gpu-colour": CLASS_MEANS,
    "gpu-colour-eps1": CLASS_MEANS,
    "dpdm": None,
    "dp-feta": CENTRAL_IMAGES,
    "cpu": CLASS_MEANS,
}


@pytest.mark.parametrize(("preset", "start"), [*PRESETS.items(), (None, CLASS_MEANS)])
def test_the_events_of_a_preset_are_its_steps_and_its_start(preset, start):
    plan = plan_of(preset, privacy=GIVEN)
    config = plan.config_as(DpDiffusionConfig)
    steps, *others = plan.events
    assert (steps.sensitivity, steps.count) == ("C", plan.steps)
    assert steps.sampling == PoissonSampling(rate=config.privacy.batch / 60_000)
    assert [event.purpose for event in others] == ([] if start is None else [start])
    assert plan.seconds > plan.seconds_on_gpu > 0
    assert plan.memory_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("domain", [MNIST, DIGITS.model_copy(update={"nominal_records": 20_000})])
def test_a_preset_spends_the_whole_budget(preset, domain):
    epsilon = 1.0 if preset.endswith("eps1") else 10.0
    assert 0.999 * epsilon < plan_of(preset, domain, epsilon).epsilon <= epsilon


def test_the_preset_for_colour_fits_a_card_and_a_lunch_break():
    domain = Domain(shape=(3, 32, 32), classes=10, nominal_records=50_000)
    plan = plan_of("gpu-colour", domain, privacy=GIVEN)
    config = plan.config_as(DpDiffusionConfig)
    assert plan.memory_bytes < 70 * 2**30
    assert plan.seconds_on_gpu < 45 * 60
    rows = config.privacy.batch * config.method.draws
    assert rows % config.runtime.micro_batch == 0, "no pass is half empty"


@pytest.mark.parametrize(("few", "batch"), [({"nominal_records": 2000}, 400), ({"nominal_people": 170}, 34)])
def test_the_preset_for_colour_takes_a_batch_that_few_units_can_fill(few, batch):
    domain = Domain(shape=(3, 32, 32), classes=2, nominal_records=50_000).model_copy(update=few)
    assert plan_of("gpu-colour", domain, privacy=GIVEN).config_as(DpDiffusionConfig).privacy.batch == batch


# One H200; the peaks that rows of ``headline.py`` measured.
SEEN_ON_CARD = [
    ((16, 32, 32), 512, 16, 4096, 7.7),
    ((16, 32, 32), 2048, 8, 4096, 8.6),
    ((32, 64, 64), 512, 8, 4608, 21.9),
    ((32, 64, 64), 2048, 4, 4096, 14.7),
    ((32, 64, 64), 6144, 4, 4096, 18.4),
    ((48, 96, 96), 3072, 4, 4096, 27.2),
]
CELLS = Domain(shape=(3, 32, 32), classes=2, nominal_records=23_708)
SEEN_IN_COLOUR = [((64, 128, 128), 2048, 2, 4096, 43.1), ((48, 96, 96), 512, 4, 4096, 23.2)]


@pytest.mark.parametrize(
    ("domain", "widths", "batch", "draws", "micro_batch", "gib"),
    [*((MNIST, *seen) for seen in SEEN_ON_CARD), *((CELLS, *seen) for seen in SEEN_IN_COLOUR)],
)
def test_the_memory_of_a_plan_is_that_of_a_card_within_a_tenth(domain, widths, batch, draws, micro_batch, gib):
    plan = plan_of(
        "gpu",
        domain,
        privacy={**GIVEN, "batch": batch},
        method={"widths": widths, "draws": draws},
        runtime={"micro_batch": micro_batch},
    )
    assert gib / 1.1 < plan.memory_bytes / 2**30 < 1.1 * gib


def test_guidance_needs_images_whose_class_was_not_told():
    sampler = {"steps": 18, "guidance": 1.0}
    with pytest.raises(
        InputError, match=r"sampler\.guidance: 1, but method\.label_dropout is 0; .*label_dropout=0\.1$"
    ):
        plan_of(None, DIGITS, privacy=GIVEN, method={"label_dropout": 0, "sampler": sampler})
    unlabelled = DIGITS.model_copy(update={"classes": None})
    with pytest.raises(InputError, match=r"the images have no classes; pass method\.sampler\.guidance=0$"):
        plan_of(None, unlabelled, privacy=GIVEN, method={"sampler": sampler})
    assert plan_of(None, DIGITS, privacy=GIVEN, method={"sampler": sampler}).events


def test_a_guide_that_no_image_is_led_away_from_is_refused():
    with pytest.raises(InputError, match=r"guide_after: 0\.3, but .*autoguidance is 0; pass method\.sampler\.autog"):
        plan_of(None, DIGITS, privacy=GIVEN, method={"guide_after": 0.3})
    led = plan_of(None, DIGITS, privacy=GIVEN, method={"guide_after": 0.3, "sampler": {"autoguidance": 1.0}})
    assert led.events == plan_of(None, DIGITS, privacy=GIVEN).events, "it costs nothing"


def test_every_preset_is_tried_here():
    assert set(METHOD.presets) == set(PRESETS)


@pytest.mark.parametrize("preset", [None, "cpu"])
def test_small_images_get_a_small_network_and_a_short_run(preset):
    config = plan_of(preset, DIGITS, privacy=GIVEN).config_as(DpDiffusionConfig)
    assert config.method.widths == (16, 32)
    assert config.privacy.steps <= 200
    assert config.privacy.batch <= 1437


def test_the_start_decides_which_events_there_are():
    none, means, central = (
        plan_of(None, DIGITS, privacy={**GIVEN, "start": start, "steps": 50})
        for start in ("none", "embedding", "central-images")
    )
    assert len(none.events) == 1
    assert means.events[1:] == (Event(noise_multiplier=means.events[1].noise_multiplier, purpose=CLASS_MEANS, **ONCE),)
    assert central.events[1].sampling == PoissonSampling(rate=0.1)
    assert (central.events[1].count, central.events[1].sensitivity) == (5, "C")
    assert none.events[0] == means.events[0] == central.events[0]
    assert none.epsilon < central.epsilon < means.epsilon, "what a start takes comes on top"


def test_the_number_of_draws_costs_nothing_and_sampler_and_network_neither():
    plans = [
        plan_of(None, DIGITS, privacy={**GIVEN, "start": "none", "steps": 50}, method=method)
        for method in ({"draws": 1}, {"draws": 8}, {"widths": [8], "sampler": {"steps": 5}, "noise_mean": 0.0})
    ]
    assert plans[0].events == plans[1].events == plans[2].events


def test_queries_and_rate_of_central_images_are_those_of_their_event():
    settings = {"queries": 9, "rate": 0.03, "noise_multiplier": 4.0}
    plan = plan_of(None, DIGITS, privacy={**GIVEN, "start": "central-images", "central_images": settings})
    event = plan.events[1]
    assert (event.count, event.sampling, event.noise_multiplier) == (9, PoissonSampling(rate=0.03), 4.0)


@pytest.mark.parametrize("start", ["embedding", "central-images", "none"])
def test_a_decided_config_plans_the_same_events_again(start):
    """As ``verify`` does with the config of a release."""
    first = plan_of(None, DIGITS, privacy={**GIVEN, "start": start, "steps": 50})
    kept = METHOD.released_config(first.config.model_dump(mode="json"))
    again = METHOD.plan(build_config(DpDiffusionConfig, kept), DIGITS, Budget(10, 1e-5))
    assert again.events == first.events
    assert again.config.model_dump(exclude={"runtime"}) == first.config.model_dump(exclude={"runtime"})


# What is refused


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"start": "none", "embedding_share": 0.3}, r"embedding_share: 0\.3 is for an embedding, but .* 'none'"),
        ({"start": "central-images", "embedding_share": 0.3}, "but privacy.start is 'central-images'"),
        ({"start": "none", "embedding_noise_multiplier": 3.0}, "embedding_noise_multiplier: 3 is for an embedding"),
        ({"embedding_share": 0.0}, r"nothing is left for the embedding .* privacy\.start=none"),
        ({"central_images": {"queries": 3}}, r"central_images: set, but .* 'embedding'; pass privacy\.start="),
        ({"start": "none", "central_images": {"noise_multiplier": 3.0}}, "central_images: set, but"),
        ({"batch": 1438}, "batch: an expected size of 1438 out of 1437"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(privacy, message):
    with pytest.raises(InputError, match=message) as refused:
        plan_of(None, DIGITS, privacy=privacy)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"privacy": {"start": "magic"}},
        {"method": {"draws": 0}},
        {"method": {"widths": [12]}},
        {"method": {"sampler": {"sigma_min": 5.0, "sigma_max": 4.0}}},
        {"method": {"label_dropout": 1.0}},
        {"privacy": {"start": "central-images", "central_images": {"rate": 1.0}}},
    ],
)
def test_settings_out_of_their_range_are_refused(values):
    with pytest.raises(InputError):
        configure(METHOD, values)


# Runs


def test_a_run_takes_the_planned_steps_and_shows_public_values_alone(tmp_path):
    release = tiny_train("dp-diffusion", tiny_data(), tmp_path / "run", privacy={"steps": 6})
    lines = read_lines(tmp_path / "run" / "progress.jsonl")
    assert [line["denoising_steps"] for line in lines if line["step"]] == [1, 2, 3, 4, 5, 6]
    assert not any("gradient_norm" in line or "clipped" in line for line in lines)
    assert all("clipped" in line for line in read_lines(tmp_path / "run" / "private" / "diagnostics.jsonl"))
    events = {event.purpose: event for event in Ledger.open(tmp_path / "run" / "ledger.jsonl").events()}
    assert (events["denoising steps"].planned, events["denoising steps"].executed) == (6, 6)
    assert events[CLASS_MEANS].executed == 1
    assert release.certificate.guarantees[0].unit == "record"


def test_the_preset_for_colour_trains_and_draws_colour(tmp_path):
    """Its own way from the embedding over the warm-up to the steps, at sizes for a test."""
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    data = from_arrays(images, np.arange(40) % 2, classes=2, records=40)
    config = {
        "privacy": {"batch": 8, "steps": 2, "noise_multiplier": 5.0, "embedding_noise_multiplier": 5.0},
        "method": {
            "widths": [8, 8, 8],
            "draws": 2,
            "embedding": {"frequencies": 20, "steps": 3, "batch": 8},
            "warm_up": {"images": 20, "steps": 2, "batch": 8},
            "sampler": {"steps": 3},
        },
        "runtime": {"device": "cpu", "micro_batch": 16},
    }
    options = TrainOptions(config=config, preset="gpu-colour")
    release = train("dp-diffusion", data, Budget(10, 1e-5), tmp_path / "run", options)
    drawn, labels = release.sample(6)
    assert drawn.shape == (6, 16, 16, 3)
    assert set(labels) <= {0, 1}
    kept = release.method_config["method"]
    assert (kept["learning_rate"], kept["average_decay"], kept["warm_up"]["leaves"]) == (1e-3, 0.99, 0.5)


LED: dict[str, Any] = {"sampler": {"steps": 3, "autoguidance": 1.0}, "mirrored": True, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def led(tmp_path_factory) -> Path:
    """The folder of a run whose release holds a guide."""
    folder = tmp_path_factory.mktemp("led") / "run"
    tiny_train("dp-diffusion", tiny_data(), folder, privacy={"steps": 6}, method=LED)
    return folder


def test_a_release_that_is_led_by_a_guide_holds_it_and_draws_the_same_when_it_is_loaded(led, tmp_path):
    release = load_release(led)
    again = load_release(release.save(tmp_path / "release"))
    assert verify(tmp_path / "release").verdict == "verified"
    assert np.array_equal(again.sample(4, seed=1)[0], release.sample(4, seed=1)[0])
    pairs = list(zip(again.generator.guide.parameters(), again.generator.network.parameters(), strict=True))
    assert any(not torch.equal(*pair) for pair in pairs)


def test_a_guide_is_the_average_at_half_of_the_steps_however_often_a_run_is_stopped(tmp_path, monkeypatch):
    """A release that is made before has the average of its last step, which leads nowhere."""
    seen: dict[int, list[torch.Tensor]] = {}
    genuine = Denoiser.average

    def noted(self: Denoiser, step: int) -> None:
        genuine(self, step)
        seen[step] = [weight.clone() for weight in self.released.network.parameters()]

    def is_step(generator: Any, step: int) -> bool:
        return all(map(torch.equal, generator.guide.parameters(), seen[step]))

    monkeypatch.setattr(Denoiser, "average", noted)
    for stop, early in ((2, 2), (4, 3)):
        folder, reports = tmp_path / f"stopped-{stop}", []

        def stop_requested(reports: list[Any] = reports, stop: int = stop) -> bool:
            return any(report.step >= stop for report in reports)

        with pytest.raises(InterruptedRun):
            tiny_train(
                "dp-diffusion",
                tiny_data(),
                folder,
                privacy={"steps": 6},
                method=LED,
                listener=reports.append,
                stop_requested=stop_requested,
            )
        assert is_step(release_early(folder).generator, early)
        assert is_step(resume(tiny_data(), folder).generator, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["method_config"]["method"]["sampler"].pop("autoguidance"),
        lambda config: config["method_config"]["method"].update(widths=[16, 16]),
        lambda config: config["method_config"]["method"]["sampler"].update(steps=4),
    ],
    ids=["a guide that was not planned", "other widths", "another sampler"],
)
def test_a_release_whose_networks_are_not_the_planned_ones_is_not_verified(led, tmp_path, change):
    """Events and hashes agree: what is held must be what the config plans."""
    shutil.copytree(led / "release", tmp_path / "release")
    edit_config(tmp_path / "release", change)
    result = verify(tmp_path / "release")
    assert [check.name for check in result.checks if not check.passed] == ["plan"]
    assert result.verdict == "refused"


def test_how_common_classes_are_is_told_only_where_an_event_told_it(tmp_path):
    """A start from central images has noisy means of all classes and no sizes: true sizes must not ride along."""
    tiny_train("dp-diffusion from central images", tiny_data(), tmp_path / "run")
    release = tmp_path / "run" / "release"
    assert verify(release).verdict == "verified"
    edit_config(release, lambda config: config["generator"].update(label_weights=[11.0, 17.0, 32.0]))
    (found,) = [check for check in verify(release).checks if not check.passed]
    assert (found.name, found.missing) == ("plan", False)
    assert "how common its classes are" in found.detail


def test_a_step_shows_the_network_all_draws_of_a_record_as_one_unit(tmp_path, monkeypatch):
    """K rows each, clipped as one: the engine is told what the loss draws."""
    from understudy.engines.dpsgd import step

    seen: list[tuple[int, int]] = []
    genuine, objective = step.PrivateStep.__init__, Denoising.objective

    def watched(self: Denoising, examples: Any, random: torch.Generator) -> Any:
        inputs, loss = objective(self, examples, random)
        seen.append((len(examples.images), len(inputs[0])))
        return inputs, loss

    def noted(self: Any, run: Any, network: Any, given: Any, options: Any, *others: Any, **more: Any) -> None:
        assert options.rows == 3
        genuine(self, run, network, given, options, *others, **more)

    monkeypatch.setattr(Denoising, "objective", watched)
    monkeypatch.setattr(step.PrivateStep, "__init__", noted)
    tiny_train("dp-diffusion", tiny_data(), tmp_path / "run", method={"draws": 3})
    assert all(rows == 3 * units for units, rows in seen)
    assert len(seen) > 4


@pytest.mark.parametrize("start", ["embedding", "central-images", "none"])
def test_the_labels_of_samples_follow_sanitized_sizes_or_none(tmp_path, start):
    """The law of labels is that of the noisy embedding, or uniform: never the true one."""
    data = from_arrays(np.zeros((40, 8, 8), dtype=np.uint8), np.zeros(40, dtype=int), classes=3, records=40)
    share = {"embedding_share": 0.05, "embedding_noise_multiplier": 10.0}
    none = {"embedding_share": None, "embedding_noise_multiplier": None}
    release = tiny_train(
        "dp-diffusion", data, tmp_path / "run", privacy={"start": start, **(share if start == "embedding" else none)}
    )
    weights = release.generator.config.label_weights
    assert (weights is None) == (start != "embedding")


@pytest.mark.slow
def test_it_learns_what_a_class_looks_like(tmp_path):
    """Class 0 is bright on the left, class 1 on the right; little noise, some hundred steps."""
    labels, images = np.arange(400) % 2, np.zeros((400, 8, 8), dtype=np.uint8)
    images[labels == 0, :, :4], images[labels == 1, :, 4:] = 220, 220
    data = from_arrays(images, labels, classes=2, records=400)
    config = {
        "privacy": {"start": "none", "noise_multiplier": 0.3, "batch": 60, "steps": 300},
        "method": {"widths": [16], "blocks": 1, "draws": 2, "learning_rate": 3e-3, "sampler": {"steps": 10}},
        "runtime": {"device": "cpu"},
    }
    release = train("dp-diffusion", data, Budget(1e5, 1e-5), tmp_path / "run", TrainOptions(config=config))
    left, right = (release.sample(40, labels=[label], seed=1)[0].astype(float) for label in (0, 1))
    assert left[:, :, :4].mean() > left[:, :, 4:].mean() + 40
    assert right[:, :, 4:].mean() > right[:, :, :4].mean() + 40
