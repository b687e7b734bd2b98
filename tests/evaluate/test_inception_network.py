"""The true Inception network, collected only where its weights were named: set UNDERSTUDY_INCEPTION to their path."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from understudy.evaluate.fid import FidConfig, fid
from understudy.evaluate.inception import FEATURES, InceptionFeatures
from understudy.evaluate.weights import ENVIRONMENT_VARIABLE, read_weights

WEIGHTS = os.environ.get(ENVIRONMENT_VARIABLE)

if WEIGHTS:

    @pytest.mark.slow
    def test_true_network_scores_itself_zero_and_noise_far_away() -> None:
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
