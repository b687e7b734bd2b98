"""Features of the Inception network by several processes: those of one, in the same order."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.evaluate import inception
from understudy.evaluate.fid import feature_statistics
from understudy.evaluate.inception import InceptionFeatures, Weights
from understudy.evaluate.spread import SpreadFeatures

from ..helpers.workers import workers_here  # noqa: F401 (a fixture)

CPU = torch.device("cpu")


class Slice(nn.Module):
    """Stands for the Inception network: its features are the first prepared values."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :2048]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Slice()), buffer)
    (tmp_path / "network.pt").write_bytes(buffer.getvalue())
    known = {hashlib.sha256(buffer.getvalue()).hexdigest(): "stand-in"}
    monkeypatch.setattr(inception, "KNOWN_WEIGHTS", MappingProxyType(known))
    monkeypatch.setattr(inception, "BATCH_ON_PROCESSOR", 3)
    return inception.find_weights(tmp_path / "network.pt")


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize("count", [0, 5, 24, 25, 40])  # batches of 3: too few to share, just enough, a last one of 1
def test_features_come_in_the_order_of_the_images_whoever_computes_them(count, stand_in, workers_here):  # noqa: F811
    alone = list(InceptionFeatures(stand_in, CPU).batches(pictures(count)))
    spread = list(SpreadFeatures(stand_in, CPU, processes=3).batches(pictures(count)))
    assert len(workers_here) == min(3, len(alone) // 4) * (len(alone) >= 8)
    assert [len(batch) for batch in spread] == [len(batch) for batch in alone]
    assert all(torch.equal(one, other) for one, other in zip(spread, alone, strict=True))


@pytest.mark.slow
def test_statistics_are_those_of_one_process_and_are_kept_as_such(stand_in, workers_here):  # noqa: F811
    """What a distance is computed from; kept ones are found again by either, since the network is one."""
    networks = [InceptionFeatures(stand_in, CPU), SpreadFeatures(stand_in, CPU, processes=2)]
    assert networks[0].key == networks[1].key
    alone, spread = (feature_statistics(pictures(30), network) for network in networks)
    assert len(workers_here) == 2
    assert alone.count == spread.count == 30
    assert np.array_equal(alone.mean, spread.mean)
    assert np.array_equal(alone.covariance, spread.covariance)


def test_a_number_that_makes_no_sense_is_refused(stand_in):
    with pytest.raises(InputError, match="processes: 0; pass a number from 1"):
        SpreadFeatures(stand_in, CPU, processes=0)


@pytest.mark.slow
def test_a_process_that_does_not_know_the_weights_refuses_them_in_its_own_words(stand_in):
    """What this process was made to believe, another is not: it checks the file for itself."""
    features = SpreadFeatures(stand_in, CPU, processes=2)
    with pytest.raises(InputError, match="is not a known Inception 2015-12-05 file, so it was not loaded"):
        list(features.batches(pictures(200)))
