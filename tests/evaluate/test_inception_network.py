"""The true Inception network, collected only where its weights are: name their path in UNDERSTUDY_INCEPTION, or install
the package that carries them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from understudy.evaluate import inception as weights
from understudy.evaluate.fid import FidConfig, fid
from understudy.evaluate.inception import ENVIRONMENT_VARIABLE, FEATURES, InceptionFeatures, read_weights

WEIGHTS = os.environ.get(ENVIRONMENT_VARIABLE) or weights._packaged()

if WEIGHTS:

    class HandThrough(torch.nn.Module):
        """Hands features through, where torchmetrics expects a network."""

        num_features = FEATURES

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features

    def torchmetrics_fid(images: torch.Tensor, reference: torch.Tensor) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies
            from torchmetrics.image.fid import FrechetInceptionDistance

            oracle = FrechetInceptionDistance(feature=HandThrough(), normalize=True).set_dtype(torch.float64)
            oracle.update(images.double(), real=False)
            oracle.update(reference.double(), real=True)
            return float(oracle.compute())

    @pytest.mark.slow
    def test_true_network_scores_itself_zero_noise_far_away_and_all_as_torchmetrics_does() -> None:
        network = InceptionFeatures(read_weights(Path(str(WEIGHTS))), torch.device("cpu"))
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (24, 1, 28, 28), dtype=np.uint8)
        dark = generator.integers(0, 64, (24, 1, 28, 28), dtype=np.uint8)
        features = next(network.batches(images))
        assert features.shape == (24, FEATURES)
        assert 0.1 < float(features.mean()) < 1.5
        with pytest.warns(UserWarning, match="too few"):
            same = fid(images, images, network, FidConfig(allow_few=True))
        with pytest.warns(UserWarning, match="too few"):
            other = fid(dark, images, network, FidConfig(allow_few=True))
        assert same.name == "fid"
        assert same.value < 0.05
        assert other.value > 5
        assert other.value == pytest.approx(torchmetrics_fid(next(network.batches(dark)), features), abs=1e-3)
