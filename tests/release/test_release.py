"""Saving, loading and sampling a release."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from understudy.errors import InputError
from understudy.privacy.randomness.streams import SEEDED
from understudy.release import release as module
from understudy.release.folders import ALLOWED_FILES
from understudy.release.release import Release, load

from .building import edit_config, edit_json, make_release


def test_a_release_survives_saving_and_loading(release: Release, folder: Path):
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALLOWED_FILES)
    loaded = load(folder)
    assert loaded.certificate == release.certificate
    assert loaded.domain == release.domain
    assert loaded.method_config == release.method_config
    for name, tensor in release.generator.state_dict().items():
        assert torch.equal(tensor, loaded.generator.state_dict()[name])
    ours, theirs = release.sample(20, seed=3), loaded.sample(20, seed=3)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_hashes_are_those_of_the_files(folder: Path):
    certificate = json.loads((folder / "certificate.json").read_text())
    for key, name in (("generator_sha256", "generator.safetensors"), ("config_sha256", "config.json")):
        assert certificate[key] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_saving_twice_and_saving_what_was_loaded_gives_the_same_bytes(release: Release, folder: Path, tmp_path: Path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    release.save(folder)
    again = load(folder).save(tmp_path / "again")
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before == {path.name: path.read_bytes() for path in again.iterdir()}


def test_what_an_earlier_version_wrote_is_saved_again_as_it_was(folder: Path, tmp_path: Path):
    """It knew fewer fields; what it left out has its default and stays left out. What was changed is still refused."""
    edit_config(folder, lambda config: config["generator"].pop("output"))
    again = load(folder).save(tmp_path / "again")
    assert (again / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    changed = replace(load(folder), method_config={"other": 1})
    with pytest.raises(InputError, match="weights or config were changed"):
        changed.save(tmp_path / "changed")


@pytest.mark.parametrize(("channels", "shape"), [(1, (7, 8, 8)), (3, (7, 8, 8, 3))])
def test_samples_have_plain_shapes(channels: int, shape: tuple[int, ...]):
    images, labels = make_release(channels=channels).sample(7)
    assert images.shape == shape
    assert images.dtype == np.uint8
    assert labels is not None
    assert labels.shape == (7,)
    assert labels.dtype == np.int64


def test_an_unlabelled_generator_gives_no_labels():
    images, labels = make_release(classes=None).sample(5)
    assert images.shape == (5, 8, 8)
    assert labels is None
    with pytest.raises(InputError, match="no classes"):
        make_release(classes=None).sample(5, labels=[0])


def test_no_sample_is_a_sample(release: Release):
    images, labels = release.sample(0)
    assert images.shape == (0, 8, 8)
    assert labels is not None
    assert len(labels) == 0


def test_labels_choose_the_classes(release: Release):
    _, labels = release.sample(400, labels=[1, 3])
    counts = np.bincount(labels, minlength=4)
    assert counts[0] == counts[2] == 0
    assert counts.min() == 0
    assert 120 < counts[1] < 280  # uniform: 200 expected, deviation 10


def test_images_follow_their_labels(release: Release):
    images, labels = release.sample(2000, seed=1)
    for label in range(4):
        alone = release.sample(500, labels=[label], seed=2)[0].mean(axis=0)
        distances = [np.abs(images[labels == other].mean(axis=0) - alone).mean() for other in range(4)]
        assert np.argmin(distances) == label


def test_one_image_of_each_class_that_is_listed(release: Release):
    """In the order of the list, whatever it repeats; the same seed draws the same."""
    asked = [3, 1, 1, 0] * 200
    images = release.sample_each(asked, seed=1)
    assert images.shape == (800, 8, 8)
    for label in (0, 1, 3):
        alone = release.sample(500, labels=[label], seed=2)[0].mean(axis=0)
        distances = [np.abs(images[np.equal(asked, other)].mean(axis=0) - alone).mean() for other in (0, 1, 3)]
        assert np.argmin(distances) == (0, 1, 3).index(label)
    assert np.array_equal(images, release.sample_each(asked, seed=1))


@pytest.mark.parametrize("labels", [[4], [-1], [0, 9]])
def test_unknown_labels_are_refused(release: Release, labels: list[int]):
    with pytest.raises(InputError, match="knows the classes 0 to 3"):
        release.sample(3, labels=labels)
    with pytest.raises(InputError, match="knows the classes 0 to 3"):
        release.sample_each(labels)


def test_impossible_counts_and_seeds_are_refused(release: Release):
    with pytest.raises(InputError, match="-1 images"):
        release.sample(-1)
    with pytest.raises(InputError, match="in parts"):
        release.sample(10**12)
    with pytest.raises(InputError, match="none were given"):
        release.sample(3, labels=[])
    with pytest.raises(InputError, match="seed"):
        release.sample(3, seed=-1)


def test_images_vary_less_at_a_lower_temperature(release: Release):
    spread = [
        release.sample(500, labels=[1], seed=1, temperature=temperature)[0].std(axis=0).mean()
        for temperature in (1.0, 0.6, 0.2)
    ]
    assert spread == sorted(spread, reverse=True)
    assert spread[2] < spread[0] / 2
    np.testing.assert_array_equal(release.sample(9, seed=1)[0], release.sample(9, seed=1, temperature=1.0)[0])


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1.5, float("nan"), float("inf")])
def test_impossible_temperatures_are_refused(release: Release, temperature: float):
    with pytest.raises(InputError, match="temperature"):
        release.sample(3, temperature=temperature)


def test_bits_cannot_be_drawn_closer_to_their_mean(release: Release):
    release.generator.config = release.generator.config.model_copy(update={"latent_law": "bernoulli"})
    assert len(release.sample(3, temperature=1.0)[0]) == 3
    with pytest.raises(InputError, match="leave it at 1"):
        release.sample(3, temperature=0.5)


def test_sampling_changes_no_weight(release: Release):
    before = {name: tensor.clone() for name, tensor in release.generator.state_dict().items()}
    release.sample(50)
    for name, tensor in release.generator.state_dict().items():
        assert torch.equal(before[name], tensor)


def test_a_seeded_run_is_saved_only_on_purpose_and_stays_stamped(tmp_path: Path):
    seeded = make_release(randomness=SEEDED)
    with pytest.raises(InputError, match="seeded"):
        seeded.save(tmp_path / "no")
    assert not (tmp_path / "no").exists()
    place = seeded.save(tmp_path / "yes", allow_seeded=True)
    assert load(place).certificate.randomness == SEEDED
    assert SEEDED in (place / "README.md").read_text()


def test_changed_weights_are_not_saved_under_the_old_certificate(release: Release, tmp_path: Path):
    with torch.no_grad():
        next(release.generator.parameters()).add_(1)
    with pytest.raises(InputError, match="changed after the certificate"):
        release.save(tmp_path / "no")


def test_broken_weights_are_not_released():
    release = make_release()
    with torch.no_grad():
        next(release.generator.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        module.build_release("dp-merf", release.generator, release.domain, {}, {})


@pytest.mark.parametrize("content", ["notes.txt", "certificate.json"])
def test_a_folder_with_other_things_is_left_alone(release: Release, tmp_path: Path, content: str):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / content).write_text("{}")
    (tmp_path / "mine" / "sub").mkdir()
    with pytest.raises(InputError, match="other files"):
        release.save(tmp_path / "mine")
    assert (tmp_path / "mine" / content).read_text() == "{}"
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="not a folder"):
        release.save(tmp_path / "link")


def test_a_folder_that_cannot_be_made_is_one_sentence(release: Release, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be written"):
        release.save(tmp_path / "file" / "released")


def test_a_full_disk_leaves_nothing_and_keeps_the_old_release(
    release: Release, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(path: Path, text: str) -> None:
        path.write_text(text[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_text", fail)
    for place in (folder, tmp_path / "new"):
        with pytest.raises(InputError, match="No space left"):
            release.save(place)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["released"]


def test_a_run_folder_means_its_release(folder: Path, tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(InputError, match="not released anything yet"):
        load(run)
    folder.rename(run / "release")
    assert load(run).method == "dp-merf"


def test_what_is_not_there_is_one_sentence(tmp_path: Path):
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"no file certificate\.json"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        load(tmp_path / "file")


def test_a_huge_network_is_refused_before_it_is_built(folder: Path):
    edit_json(folder / "config.json", lambda config: config["generator"].update(width=4096, kind="resnet"))
    with pytest.raises(InputError, match="weights: tensor"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda config: config.update(extra=1), "extra"),
        (lambda config: config["generator"].update(width=5), "but the config needs"),
        (lambda config: config["generator"].update(kind="resnet"), "tensor"),
        (lambda config: config["generator"].update(shape=[1, 16, 16]), "disagree"),
        (lambda config: config["domain"].update(classes=5), "disagree"),
        (lambda config: config.update(method="../../evil"), "method"),
        (lambda config: config.update(method="gs-wgan"), "certified as"),
    ],
)
def test_a_wrong_config_is_refused(folder: Path, change, sentence: str):
    edit_json(folder / "config.json", change)
    with pytest.raises(InputError, match=sentence):
        load(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04pickle",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 21) + b'{"start.weight": 1234}',
    ],
)
def test_damaged_weights_are_one_sentence(folder: Path, content: bytes):
    (folder / "generator.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit_json(folder / "certificate.json", lambda certificate: certificate.update(generator_sha256=digest))
    with pytest.raises(InputError, match="weights"):
        load(folder)


def with_metadata(content: bytes) -> bytes:
    return safetensors.torch.save(safetensors.torch.load(content), {"patient": "17"})


def noted(header: str) -> str:
    """A word more about the first tensor."""
    entries = json.loads(header)
    next(iter(entries.values()))["note"] = "patient 17"
    return json.dumps(entries, separators=(",", ":"))


def shuffled(header: str) -> str:
    """The order of tensors would be a message."""
    return json.dumps(dict(reversed(json.loads(header).items())), separators=(",", ":"))


def turned_around(header: str) -> str:
    """So would that of what is said of each."""
    entries = {name: dict(reversed(entry.items())) for name, entry in json.loads(header).items()}
    return json.dumps(entries, separators=(",", ":"))


def with_header(change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """A file that safetensors reads as before, with another header."""

    def changed(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        header = change(content[8 : 8 + length].decode()).encode()
        changed = struct.pack("<Q", len(header)) + header + content[8 + length :]
        assert safetensors.torch.load(changed).keys() == safetensors.torch.load(content).keys()
        return changed

    return changed


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_metadata, id="metadata"),
        pytest.param(with_header(noted), id="in an entry"),
        pytest.param(with_header(lambda text: text + " " * 1000), id="many spaces"),
        pytest.param(with_header(lambda text: text.replace(",", ",\t\n", 1)), id="between words"),
        pytest.param(with_header(lambda text: text.replace("w", "\\u0077", 1)), id="spelt otherwise"),
        pytest.param(with_header(shuffled), id="tensors in another order"),
        pytest.param(with_header(turned_around), id="an entry in another order"),
    ],
)
def test_text_beside_the_tensors_is_refused(folder: Path, change: Callable[[bytes], bytes]):
    """It would ride along unseen: the networks that the config plans have no place for it."""
    weights = folder / "generator.safetensors"
    weights.write_bytes(change(weights.read_bytes()))
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    edit_json(folder / "certificate.json", lambda certificate: certificate.update(generator_sha256=digest))
    with pytest.raises(InputError, match="holds text beside its tensors"):
        load(folder)


def test_exchanged_weights_are_refused(folder: Path):
    with (folder / "generator.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(InputError, match="not those that its certificate names"):
        load(folder)


def test_the_model_card_says_it_in_plain_words(folder: Path):
    card = (folder / "README.md").read_text()
    for words in (
        "epsilon 4.3772 (delta 1e-05)",
        "understudy verify",
        "nominal\\_records: 1000",
        "side channels",
        "once",
        "Stated by whoever trained it, and not proven",
    ):
        assert words in card


def test_names_cannot_break_the_model_card(tmp_path: Path):
    names = ("<script>alert(1)</script>", "](http://evil)", "# big\n\n# bigger", "`code`")
    card = (make_release(class_names=names).save(tmp_path / "x") / "README.md").read_text()
    assert "<script>" not in card
    assert "\n# big" not in card
    assert "](http://evil" not in card.replace("\\]", "")
