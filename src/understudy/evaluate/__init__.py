"""Figures for generated images: Fréchet Inception distance, Inception score, downstream accuracy.

Names are imported on first use, so that importing the package does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.evaluate.downstream import DownstreamResult, LabelledImages, cnn_accuracy, downstream_accuracy
    from understudy.evaluate.evaluation import Evaluation, EvaluationConfig, evaluate
    from understudy.evaluate.parallel import Crew, downstream_accuracies


__all__ = [
    "Crew",
    "DownstreamResult",
    "Evaluation",
    "EvaluationConfig",
    "LabelledImages",
    "cnn_accuracy",
    "downstream_accuracies",
    "downstream_accuracy",
    "evaluate",
]

_MODULES = {
    "evaluation": ("Evaluation", "EvaluationConfig", "evaluate"),
    "downstream": ("DownstreamResult", "LabelledImages", "cnn_accuracy", "downstream_accuracy"),
    "parallel": ("Crew", "downstream_accuracies"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next(module for module, names in _MODULES.items() if name in names)
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
