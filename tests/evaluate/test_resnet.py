"""The residual network learns colour, is as large as it says, and stands beside the CNN where images are in colour."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from understudy.data.arrays import from_arrays
from understudy.errors import InputError
from understudy.evaluate.classifiers import ClassifierSetup, table_classifiers
from understudy.evaluate.cnn import CnnConfig
from understudy.evaluate.downstream import LabelledImages, downstream_accuracy
from understudy.evaluate.evaluation import EvaluationConfig, evaluate, expand_metrics
from understudy.evaluate.parallel import Crew, downstream_accuracies, setup_from
from understudy.evaluate.resnet import ResnetConfig, ResnetNetwork, moved, train_resnet

NARROW = ResnetConfig(widths=(8, 8, 8, 8), epochs=6, minimum_steps=60, device="cpu")
QUICK = replace(NARROW, epochs=1, minimum_steps=2)


def spotted(number: int, seed: int) -> LabelledImages:
    """Cells of many colours; those of class 1 have a dark spot of two pixels a side somewhere in them."""
    random = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    images = random.integers(120, 250, (number, 3, 1, 1)) + random.integers(-5, 6, (number, 3, 16, 16))
    for image, label, (row, column) in zip(images, labels, random.integers(2, 12, (number, 2)), strict=True):
        image[:, row : row + 2, column : column + 2] -= 80 * label
    return LabelledImages(images.astype(np.uint8), labels)


def last(images: LabelledImages) -> tuple[Any, Any]:
    return images.images.transpose(0, 2, 3, 1), images.labels


def test_it_finds_a_small_spot_whatever_the_colour() -> None:
    result = downstream_accuracy("resnet", spotted(400, 0), spotted(200, 1), ClassifierSetup(2, resnet=NARROW))
    assert result.accuracy > 0.9
    assert result.parameters == train_resnet(*vars(spotted(40, 0)).values(), 2, QUICK).parameters
    assert "8, 8, 8, 8 kernels" in result.settings


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (3, 28, 28), (3, 32, 32), (3, 64, 48)])
def test_it_fits_every_supported_shape(shape: tuple[int, int, int]) -> None:
    network = ResnetNetwork(shape, 7, (8, 8, 8, 8)).eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


def test_its_size_is_that_of_the_documentation() -> None:
    network = ResnetNetwork((3, 32, 32), 10, ResnetConfig().widths)
    assert sum(values.numel() for values in network.parameters()) == 1_228_074


def test_training_images_are_shifted_by_up_to_an_eighth_and_half_of_them_are_mirrored() -> None:
    rows, columns = (torch.arange(16)[:, None].expand(16, 16), torch.arange(16).expand(16, 16))
    image = torch.stack([rows, columns, rows + columns])[None].to(torch.uint8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        seen = moved(image, torch.zeros(1000, dtype=torch.long))
    assert torch.equal(seen[:, 2], seen[:, 0] + seen[:, 1]), "the channels of a pixel stay together"
    shifts = seen[:, 0, 8, 0].long() - 8
    assert sorted(set(shifts.tolist())) == [-2, -1, 0, 1, 2]
    mirrored = (seen[:, 1, 0, 8] < seen[:, 1, 0, 7]).float().mean()
    assert 0.4 < mirrored < 0.6
    assert set(seen[:, 1, 0, 7].tolist()) <= set(range(5, 11))
    top = seen[shifts == -2]
    assert top[0, 0, :4, 0].tolist() == [2, 1, 0, 1], "beyond the border the image is mirrored"


def test_the_length_of_its_training_follows_from_the_number_of_images() -> None:
    config = ResnetConfig()
    assert config.schedule(60_000) == (256, 234, 20)
    assert config.schedule(2_000) == (62, 32, 20)
    assert config.schedule(100) == (32, 3, 134)
    assert config.schedule(3) == (3, 1, 400)
    with pytest.raises(InputError, match="epochs: 0"):
        ResnetConfig(epochs=0)


def test_same_seed_same_network_and_the_callers_randomness_is_left_alone() -> None:
    data, test = spotted(60, 0), spotted(20, 1)
    state = torch.random.get_rng_state()
    weights = [train_resnet(data.images, data.labels, 2, QUICK).network.head.weight for _ in range(2)]
    torch.testing.assert_close(*weights)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert train_resnet(data.images[:3], data.labels[:3], 2, QUICK).predict(test.images).shape == (20,)


def test_a_process_of_its_own_is_told_the_same_settings() -> None:
    setup = ClassifierSetup(2, cnn=CnnConfig(), resnet=QUICK)
    assert setup_from(json.loads(json.dumps(asdict(setup)))) == setup


@pytest.mark.slow
def test_a_process_of_its_own_trains_the_same_network() -> None:
    sets, setup = (spotted(60, 0), spotted(20, 1)), ClassifierSetup(2, resnet=QUICK)
    (own,) = downstream_accuracies(["resnet"], *sets, setup, Crew(1)).values()
    assert own.settings == QUICK.describe()
    assert own.parameters == downstream_accuracy("resnet", *sets, setup).parameters


def test_it_is_no_part_of_the_averages_of_the_thirteen_and_joins_them_in_colour_only() -> None:
    assert len(table_classifiers()) == 13
    assert expand_metrics(("downstream",)) == table_classifiers()
    assert expand_metrics(("downstream",), channels=3) == (*table_classifiers(), "resnet")


@pytest.fixture
def quick_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "understudy.evaluate.evaluation"
    monkeypatch.setattr(f"{place}.ResnetConfig", partial(ResnetConfig, widths=(8, 8, 8, 8), minimum_steps=2))
    monkeypatch.setattr(f"{place}.CnnConfig", partial(CnnConfig, minimum_steps=2, hidden=16))


def test_both_networks_are_named_in_the_result_with_size_and_yardstick(
    quick_networks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.evaluate.evaluation.DEFAULT_METRICS", ("cnn",))  # fid needs weights
    train, test = last(spotted(64, 0)), last(spotted(40, 1))
    config = EvaluationConfig(device="cpu", fast=True)
    result = evaluate(*train, train, test, config=config)
    plain = json.loads(json.dumps(result.as_dict()))
    assert [figure["name"] for figure in plain["figures"]] == ["cnn", "resnet"]
    assert plain["resnet_accuracy"] == result.value("resnet")
    for figure in plain["figures"]:
        assert figure["parameters"] > 1000
        assert figure["yardstick"]["real"] == figure["real_accuracy"]
    assert any(sentence.startswith("the residual network ran 5 epochs instead of 20") for sentence in plain["left_out"])
    grey = tuple((images[..., 0], labels) for images, labels in (train, test))
    only = evaluate(*grey[0], *grey, config=config).as_dict()
    assert [figure["name"] for figure in only["figures"]] == ["cnn"]
    assert "resnet_accuracy" not in only, "results on grey images are as they were"


def test_images_are_taken_as_image_libraries_have_them(quick_networks: None) -> None:
    """Data sets, colour with channels last, grey with or without a channel: the same images, the same figure."""
    train, test = spotted(64, 0), spotted(40, 1)
    config = EvaluationConfig(device="cpu", reference=False)
    for cut in (slice(None), slice(1)):  # colour, then grey
        planes = [(part.images[:, cut], part.labels) for part in (train, test)]
        arrays = [(images.transpose(0, 2, 3, 1), labels) for images, labels in planes]
        sets = [from_arrays(*pair, records=64, classes=2) for pair in planes]
        squeezed = [(data.pictures, data.labels) for data in sets]
        found = [
            evaluate(*given[0], *real, ["gaussian_nb"], config).value("gaussian_nb")
            for given, real in ((arrays, arrays), (squeezed, sets), (squeezed, arrays))
        ]
        assert found[0] == found[1] == found[2]


def test_channels_first_are_refused_with_the_way_out() -> None:
    train = spotted(64, 0)
    pair = last(train)
    ways = r"shape \(64, 3, 16, 16\) has its channels first.*pass images.transpose\(0, 2, 3, 1\)"
    with pytest.raises(InputError, match=f"^images: {ways}"):
        evaluate(train.images, train.labels, pair, pair, ["cnn"])
    with pytest.raises(InputError, match=f"^real training images: {ways}"):
        evaluate(*pair, (train.images, train.labels), pair, ["cnn"])
    with pytest.raises(InputError, match=r"^real test images: shape \(64, 1, 16, 16\) has its channels first"):
        evaluate(*pair, pair, (train.images[:, :1], train.labels), ["cnn"])
    with pytest.raises(InputError, match=r"^images: shape \(16, 16\), but \(number, height, width\)"):
        evaluate(train.images[0, 0], train.labels, pair, pair, ["cnn"])
    unlabelled = from_arrays(train.images, records=64)
    with pytest.raises(InputError, match="labels: arrays has none"):
        evaluate(*pair, unlabelled, pair, ["cnn"])
