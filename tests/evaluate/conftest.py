"""Small data sets that the evaluation tests share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from understudy.evaluate.downstream import LabelledImages


@pytest.fixture(scope="session")
def digits() -> tuple[LabelledImages, LabelledImages]:
    """The bundled 8x8 digits as byte images: three quarters to train on, the rest held out."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels, labels = pixels[order], labels[order].astype(np.int64)
    return LabelledImages(pixels[:1347], labels[:1347]), LabelledImages(pixels[1347:], labels[1347:])


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads and lose a lot where tests share a machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_weights_around(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide Inception weights this machine may have, so that every test decides for itself which there are."""
    monkeypatch.delenv("UNDERSTUDY_INCEPTION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("understudy.evaluate.inception.PACKAGE", "a-package-that-nobody-has-installed")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip finds what a test puts into a folder, and nothing else
