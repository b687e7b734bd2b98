"""Every planted fault is found and named; clean data give no finding. False-alarm rate of each assertion: 1e-6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import understudy as us
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.inspection.images import possible_changes, small
from understudy.inspection.inspection import NOT_PRIVATE, PRIVATE, inspect_samples
from understudy.inspection.samples import Samples, draw_samples, real_samples

from ..federated.helpers import federated_data, tiny_config
from ..release.building import make_release
from .building import CHANGES, PER_CLASS, digits, inverse, quarter_turn, samples, some


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_clean_data(seed: int):
    assert inspect_samples(samples(1, seed=seed), samples(0, seed=seed)).findings == ()
    assert inspect_samples(samples(1, seed=seed)).findings == ()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_third_of_the_images_is_found_beside_a_normal_release(name: str):
    inspection = inspect_samples(samples(1, some(CHANGES[name])), samples(0))
    assert [finding.name for finding in inspection.findings] == [name]
    finding = inspection.findings[0]
    assert finding.bound > finding.margin
    assert abs(finding.estimate - 0.3) < 0.06
    assert finding.bound < finding.estimate
    assert "30 %" in finding.sentence or "%" in finding.sentence
    assert any(len(rows) for rows in inspection.examples[name])


@pytest.mark.parametrize("name", ["rotated-90", "rotated-270", "mirrored", "inverted"])
def test_a_change_of_a_third_of_the_images_is_found_without_a_reference(name: str):
    inspection = inspect_samples(samples(1, some(CHANGES[name])))
    assert [finding.name for finding in inspection.findings] == [name]
    assert 0.2 < inspection.findings[0].estimate < 0.4
    assert "cannot be told which group is right" in inspection.findings[0].sentence
    assert inspection.mixtures


@pytest.mark.parametrize("change", [quarter_turn, inverse])
def test_a_change_of_all_images_is_found_beside_a_normal_release(change):
    (finding,) = inspect_samples(samples(1, some(change, 1.0)), samples(0)).findings
    assert finding.bound > 0.8


def test_a_share_below_the_margin_is_no_finding():
    """Two generators differ a little: an effect within the margin is not reported, however many samples are drawn."""
    assert inspect_samples(samples(1, some(quarter_turn, 0.03)), samples(0)).findings == ()


def test_a_change_of_one_class_is_found_and_the_class_is_named():
    broken = samples(1)
    images = list(broken.images)
    images[3] = some(quarter_turn, 0.7)(images[3], np.random.default_rng(0))
    (finding,) = inspect_samples(replace(broken, images=tuple(images)), samples(0)).findings
    assert (finding.name, finding.classes) == ("rotated-90", ("3",))
    assert abs(finding.estimate - 0.7) < 0.1


def test_two_faults_at_once_are_both_named():
    def both(images, random):
        return some(inverse, 0.3)(some(quarter_turn, 0.3)(images, random), random)

    found = {finding.name for finding in inspect_samples(samples(1, both), samples(0)).findings}
    assert {"rotated-90", "inverted"} <= found


def test_exchanged_labels_are_found():
    broken = samples(1)
    images = list(broken.images)
    images[2], images[6] = images[6], images[2]
    findings = inspect_samples(replace(broken, images=tuple(images)), samples(0)).findings
    assert {(finding.name, finding.classes) for finding in findings} == {
        ("changed-class", ("2",)),
        ("changed-class", ("6",)),
    }
    assert "most look like class 6" in findings[0].sentence


def test_labels_that_are_all_mixed_up_are_one_finding_of_all_classes():
    broken = samples(1)
    findings = inspect_samples(replace(broken, images=(*broken.images[1:], broken.images[0])), samples(0)).findings
    (finding,) = (finding for finding in findings if finding.kind == "class")
    assert finding.classes == broken.class_names
    assert finding.sentence.startswith("10 of 10 classes do not look like the same classes of the normal release: 0,")
    assert finding.margin < finding.bound < finding.estimate


def test_a_class_of_noise_is_unknown_and_does_not_testify_to_a_rotation():
    broken = samples(1)
    images = list(broken.images)
    images[7] = np.random.default_rng(0).integers(0, 256, images[7].shape, dtype=np.uint8)
    findings = inspect_samples(replace(broken, images=tuple(images)), samples(0)).findings
    names = {finding.name for finding in findings}
    assert names <= {"changed-class", "unknown-content", "noise", "background", "brightness"}
    assert any(finding.kind in ("class", "unknown") and finding.classes == ("7",) for finding in findings)


def of_two_classes(first: np.ndarray, second: np.ndarray, name: str = "suspect") -> Samples:
    domain = Domain(shape=(1, 8, 8), classes=2, nominal_records=1000)
    return Samples(name, domain, (first, second))


def test_classes_at_chance_level_are_found_for_two_classes_too():
    """Of two classes drawn from one law about 50 % are recognised, which is what guessing gives."""
    law = np.random.default_rng(0).permutation(np.concatenate([samples(1).images[3], samples(1, seed=7).images[3]]))
    suspect = of_two_classes(law[::2], law[1::2])
    (finding,) = inspect_samples(suspect).findings
    assert finding.name == "classes-at-chance"
    assert "where guessing gives 50 %" in finding.sentence
    usual = of_two_classes(samples(0).images[3], samples(0).images[4], "normal")
    beside = inspect_samples(suspect, usual)
    assert {finding.kind for finding in beside.findings} == {"class"}
    assert "Nothing" not in beside.sentences()[0]


def test_of_a_few_samples_that_cannot_be_told_from_guessing_nothing_is_claimed():
    law = samples(1).images[3]
    inspection = inspect_samples(of_two_classes(law[:40], law[40:80]))
    assert inspection.findings == ()
    (sentence,) = inspection.sentences()
    assert sentence.startswith("Nothing can be said about the classes: ")
    assert inspection.as_dict()["doubts"] == [sentence]


def test_where_the_normal_classes_look_alike_nothing_is_claimed_about_classes():
    law, other = samples(1).images[3], samples(0).images[3]
    inspection = inspect_samples(of_two_classes(law[::2], law[1::2]), of_two_classes(other[::2], other[1::2], "normal"))
    assert inspection.findings == ()
    assert "of the normal release are recognised as their class" in inspection.sentences()[0]


def test_that_nothing_was_found_is_said_beside_what_guessing_and_the_normal_release_give():
    beside, alone = inspect_samples(samples(1), samples(0)), inspect_samples(samples(1))
    assert "of those of the normal release" in beside.sentences()[0]
    assert "guessing gives 10 %" in beside.sentences()[0]
    assert alone.sentences()[0].endswith("cannot be seen without them: --real compares.")
    recognition = beside.as_dict()["recognition"]
    assert recognition["guessing"] == 0.1
    assert min(recognition["rate"], recognition["normal"]) > 0.8


@pytest.mark.parametrize("classes", [10, None])
def test_noise_is_found_with_and_without_classes_and_reference(classes: int | None):
    domain = Domain(shape=(1, 8, 8), classes=classes, nominal_records=1437)
    random, number = np.random.default_rng(0), classes or 1
    noise = tuple(random.integers(0, 256, (PER_CLASS, 8, 8), dtype=np.uint8) for _ in range(number))
    usual = samples(0).images if classes else (np.concatenate(samples(0).images)[::10],)
    for normal in (None, Samples("normal", domain, usual)):
        found = {finding.name for finding in inspect_samples(Samples("suspect", domain, noise), normal).findings}
        assert "noise" in found


def test_images_that_drown_in_noise_are_found_beside_a_normal_release():
    def drown(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
        return np.clip(images + random.normal(0, 160, images.shape), 0, 255).astype(np.uint8)

    assert "noise" in {finding.name for finding in inspect_samples(samples(1, drown), samples(0)).findings}


def coloured(spread: float, seed: int) -> Samples:
    """Digits of a colour of their own each, which lies within ``spread`` of grey."""
    domain, random = Domain(shape=(3, 8, 8), classes=10, nominal_records=1437), np.random.default_rng(seed)
    images = []
    for each in samples(seed % 2, seed=seed).images:
        tint = 1 - spread * random.random((len(each), 1, 1, 3))
        images.append((each[..., None] * tint).astype(np.uint8))
    return Samples("suspect" if seed % 2 else "normal", domain, tuple(images))


def test_a_lost_variety_of_colours_is_found():
    vivid, pale, grey = coloured(0.8, 1), coloured(0.1, 1), coloured(0.0, 1)
    assert inspect_samples(vivid, coloured(0.8, 0)).findings == ()
    assert inspect_samples(vivid).findings == ()
    for poor in (pale, grey):
        (finding,) = (each for each in inspect_samples(poor, coloured(0.8, 0)).findings if each.kind == "variety")
        assert finding.name == "lost-colours"
        assert finding.margin < finding.bound < finding.estimate
    (finding,) = inspect_samples(grey).findings
    assert "declare one channel" in finding.sentence


def test_brightness_is_found():
    findings = inspect_samples(samples(1, lambda images, _: images // 2), samples(0)).findings
    assert {"brightness", "contrast"} & {finding.name for finding in findings}


def test_blank_images_and_a_collapsed_class_are_found_without_a_reference():
    broken = samples(1)
    images = list(broken.images)
    images[0] = np.zeros_like(images[0])
    images[1] = np.repeat(images[1][:1], PER_CLASS, axis=0)
    found = {
        (finding.name, finding.classes) for finding in inspect_samples(replace(broken, images=tuple(images))).findings
    }
    assert {("blank-images", ("0",)), ("one-picture", ("1",))} <= found


def shares(**changed: float) -> tuple[float, ...]:
    values = [changed.get(f"class_{label}", 0.1) for label in range(10)]
    return tuple(value / sum(values) for value in values)


def test_a_class_that_is_missing_from_the_normal_release_is_common_in_the_suspect():
    usual = samples(0, shares=shares(class_7=0.0), deviation=0.0)
    findings = inspect_samples(samples(1, shares=shares(), deviation=0.0), usual).findings
    assert [(finding.name, finding.classes) for finding in findings] == [("imbalance", ("7",))]
    assert "Class 7 is common" in findings[0].sentence


def test_the_law_of_labels_of_a_federation_says_nothing_about_balance(tmp_path):
    """Embeddings of clients have norm one whatever they hold, so nobody knows the noise in the shares."""
    options = us.TrainOptions(config=tiny_config())
    release = us.train("gs-wgan-federated", federated_data(), us.Budget(10, 1e-5), tmp_path / "run", options)
    assert release.generator.config.label_weights is not None
    assert draw_samples(release, 40, "suspects").shares is None


def test_missing_and_rare_classes_are_found_in_the_law_of_labels():
    usual = samples(0, shares=shares(), deviation=1e-4)
    broken = samples(1, shares=shares(class_7=0.0005, class_4=0.01), deviation=1e-4)
    findings = {finding.classes[0]: finding for finding in inspect_samples(broken, usual).findings}
    assert findings["7"].name == "missing-class"
    assert findings["4"].name == "imbalance"
    assert "practically missing" in findings["7"].sentence
    alone = {finding.classes[0] for finding in inspect_samples(broken).findings}
    assert alone == {"4", "7"}


def test_of_a_class_that_is_missing_only_that_is_said():
    """A generator that saw no image of a class draws anything for it; how that looks is no fault of the data."""
    broken = samples(1, shares=shares(class_7=0.0005), deviation=1e-4)
    images = list(broken.images)
    images[7] = some(quarter_turn, 0.7)(images[7], np.random.default_rng(0))
    broken, usual = replace(broken, images=tuple(images)), samples(0, shares=shares(), deviation=1e-4)
    for inspection in (inspect_samples(broken, usual), inspect_samples(broken)):
        assert [(finding.name, finding.classes) for finding in inspection.findings] == [("missing-class", ("7",))]
        assert not inspection.examples
    rare = inspect_samples(replace(broken, shares=shares(class_7=0.01)), usual)
    assert [finding.name for finding in rare.findings] == ["rotated-90", "imbalance"], "it is there, so it is judged"


def test_noise_in_the_law_of_labels_is_no_finding():
    noisy = samples(1, shares=shares(class_7=0.03), deviation=0.02)
    assert inspect_samples(noisy, samples(0, shares=shares(), deviation=0.0)).findings == ()


def test_unlabelled_samples_are_inspected_as_one_class():
    domain = Domain(shape=(1, 8, 8), nominal_records=1437)
    usual, broken = (
        Samples(name, domain, (np.random.default_rng(0).permutation(np.concatenate(each.images)),))
        for name, each in (("normal", samples(0)), ("suspect", samples(1, some(quarter_turn))))
    )
    (finding,) = inspect_samples(broken, usual).findings
    assert finding.name == "rotated-90"
    assert inspect_samples(usual).findings == ()
    dark = Samples("suspect", domain, (some(inverse)(usual.images[0], np.random.default_rng(1)),))
    assert "inverted" in {finding.name for finding in inspect_samples(dark).findings}


def test_colour_and_oblong_images():
    domain = Domain(shape=(3, 8, 8), classes=10, nominal_records=1437)
    usual, broken = (
        Samples(each.name, domain, tuple(np.repeat(images[..., None], 3, axis=3) for images in each.images))
        for each in (samples(0), samples(1, some(inverse)))
    )
    assert [finding.name for finding in inspect_samples(broken, usual).findings] == ["inverted"]
    oblong = possible_changes(8, 12)
    assert {change.name for change in oblong} == {"rotated-180", "mirrored", "flipped", "inverted"}
    assert small(np.zeros((2, 28, 40, 3), dtype=np.uint8)).shape == (2, 9, 13)


def test_real_data_stamp_the_inspection():
    data = digits()
    alone, beside = inspect_samples(samples(1)), inspect_samples(samples(1), real_samples(data, 100))
    assert (alone.private, alone.stamp) == (True, PRIVATE)
    assert (beside.private, beside.stamp) == (False, NOT_PRIVATE)
    assert beside.findings == ()
    assert beside.as_dict()["stamp"] == NOT_PRIVATE


def test_what_cannot_be_compared_is_refused():
    usual = samples(0)
    other = replace(usual, domain=Domain(shape=(1, 8, 8), classes=9, nominal_records=10), images=usual.images[:9])
    with pytest.raises(InputError, match=r"10 classes .* 9 classes"):
        inspect_samples(samples(1), other)
    larger = replace(usual, domain=Domain(shape=(1, 9, 9), classes=10, nominal_records=10))
    with pytest.raises(InputError, match="compare two of one shape"):
        inspect_samples(samples(1), larger)
    names = tuple(f"digit {label}" for label in range(10))
    named = replace(usual, domain=usual.domain.model_copy(update={"class_names": names}))
    with pytest.raises(InputError, match="is called 'digit 0'"):
        inspect_samples(samples(1), named)
    few = replace(usual, images=tuple(images[:10] for images in usual.images))
    with pytest.raises(InputError, match="too few"):
        inspect_samples(samples(1), few)
    with pytest.raises(InputError, match="too few"):
        inspect_samples(few)
    with pytest.raises(InputError, match="--samples 40 or more"):
        real_samples(digits(), 10)


def test_whoever_waits_for_samples_hears_of_each_piece_of_a_class(monkeypatch: pytest.MonkeyPatch):
    release, heard = make_release(), list[tuple[int, int]]()

    def in_halves(count: int, label: object, watch: Callable[[int], None]) -> tuple[NDArray[np.uint8], None]:
        watch(count // 2)
        return np.zeros((count, 8, 8), dtype=np.uint8), None

    monkeypatch.setattr(type(release), "sample", lambda self, *given, **named: in_halves(*given, **named))
    draw_samples(release, 40, "suspects", lambda done, total: heard.append((done, total)))
    total = 40 * (release.domain.classes or 1)
    assert heard[:3] == [(20, total), (40, total), (60, total)]
    assert heard[-1] == (total, total)
