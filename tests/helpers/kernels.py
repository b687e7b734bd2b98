"""Triton kernels on a graphics card, or without one in Triton's interpreter on the processor."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest
import torch

ON_CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_CARD else "cpu")
needs_card = pytest.mark.skipif(not ON_CARD, reason="needs a graphics card")


def kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of kernels, to be called with tensors on ``DEVICE``; skips the test where there is no Triton.

    Whether kernels are interpreted is decided when they are imported, and once more at their first call.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    if not ON_CARD:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return importlib.import_module(f"understudy.{name}")
