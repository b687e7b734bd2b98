"""Figures for generated images: Fréchet Inception distance, Inception score, downstream accuracy.

Names are imported on first use, so that importing the package does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.evaluate.downstream import DownstreamResult, LabelledImages, cnn_accuracy, downstream_accuracy
    from understudy.evaluate.evaluation import Evaluation, EvaluationConfig, evaluate

__all__ = [
    "DownstreamResult",
    "Evaluation",
    "EvaluationConfig",
    "LabelledImages",
    "cnn_accuracy",
    "downstream_accuracy",
    "evaluate",
]

_DOWNSTREAM = ("DownstreamResult", "LabelledImages", "cnn_accuracy", "downstream_accuracy")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "downstream" if name in _DOWNSTREAM else "evaluation"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
