"""The public surface as the design states it: five lines of Python from a data set to a verified release."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import understudy as us


def test_every_public_name_is_there_and_they_are_sorted():
    assert us.__all__ == sorted(us.__all__)
    for name in us.__all__:
        assert getattr(us, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        us.no_such_name  # noqa: B018


def test_from_a_data_set_to_a_verified_release(tmp_path):
    data = us.load("digits")
    config = {"method": {"frequencies": 200, "steps": 20, "batch": 100, "width": 8}, "runtime": {"device": "cpu"}}
    options = us.TrainOptions(config=config)
    release = us.train("dp-merf", data, us.Budget(epsilon=10, delta=1e-5), out=tmp_path / "run", options=options)
    images, labels = release.sample(300)
    assert images.shape == (300, 8, 8)
    assert images.dtype == np.uint8
    assert set(labels) <= set(range(10))
    release.save(tmp_path / "digits-eps10")
    verification = us.verify(tmp_path / "digits-eps10")
    assert verification.passed
    assert 9.8 < verification.epsilon <= release.certificate.headline.epsilon <= 10
    again = us.load_release(tmp_path / "digits-eps10")
    assert np.array_equal(again.sample(10, seed=1)[0], release.sample(10, seed=1)[0])


def test_a_published_folder_needs_nothing_of_the_run(tmp_path):
    random = np.random.default_rng(0)
    data = us.from_arrays(random.integers(0, 256, (40, 8, 8), dtype=np.uint8), records=40)
    config = {"method": {"frequencies": 16, "steps": 2, "width": 4}, "privacy": {"noise_multiplier": 10.0}}
    release = us.train("dp-merf", data, us.Budget(10, 1e-5), tmp_path / "run", us.TrainOptions(config=config))
    release.save(tmp_path / "published")
    (tmp_path / "run").rename(tmp_path / "gone")
    assert us.verify(tmp_path / "published").passed
    assert us.load_release(tmp_path / "published").sample(3)[1] is None


def test_the_release_in_the_repository_verifies_draws_and_names():
    folder = Path(__file__).parents[2] / "examples/fashion-mnist-eps10"
    verification = us.verify(folder)
    assert verification.verdict == "verified"
    assert 9.9 < verification.epsilon <= 10
    release = us.load_release(folder)
    images, _ = release.sample(2, steps=2)
    assert images.shape == (2, 28, 28)
    assert set(release.label(images)) <= set(range(10))
