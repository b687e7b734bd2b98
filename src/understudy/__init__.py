"""Understudy: a generator that may be released in place of sensitive images, with a certificate of what it reveals.

>>> import understudy as us
>>> data = us.load("digits")
>>> release = us.train("dp-merf", data, us.Budget(epsilon=10, delta=1e-5), out="runs/digits")  # doctest: +SKIP
>>> images, labels = release.sample(1000)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.api import TrainOptions, release_early, resume, train
    from understudy.data.arrays import from_arrays
    from understudy.data.dataset import ImageDataset
    from understudy.data.domain import Domain
    from understudy.data.sources import from_hugging_face, load
    from understudy.errors import AbortedRun, BudgetError, CheckError, InputError, InterruptedRun, UnderstudyError
    from understudy.methods.choice import choose
    from understudy.methods.registry import method_names
    from understudy.privacy.budget import Budget
    from understudy.privacy.certificate import Certificate
    from understudy.release.release import Release
    from understudy.release.release import load as load_release
    from understudy.release.verify import Verification, verify
    from understudy.runs.accounts import Account, open_account, read_account


__version__ = "0.1.0"

__all__ = [
    "AbortedRun",
    "Account",
    "Budget",
    "BudgetError",
    "Certificate",
    "CheckError",
    "Domain",
    "ImageDataset",
    "InputError",
    "InterruptedRun",
    "Release",
    "TrainOptions",
    "UnderstudyError",
    "Verification",
    "choose",
    "from_arrays",
    "from_hugging_face",
    "load",
    "load_release",
    "method_names",
    "open_account",
    "read_account",
    "release_early",
    "resume",
    "train",
    "verify",
]

_HOME = {  # where each name lives; imported when it is first used, so that `import understudy` is quick
    "AbortedRun": "errors",
    "Account": "runs.accounts",
    "Budget": "privacy.budget",
    "BudgetError": "errors",
    "Certificate": "privacy.certificate",
    "CheckError": "errors",
    "Domain": "data.domain",
    "ImageDataset": "data.dataset",
    "InputError": "errors",
    "InterruptedRun": "errors",
    "Release": "release.release",
    "TrainOptions": "api",
    "UnderstudyError": "errors",
    "Verification": "release.verify",
    "choose": "methods.choice",
    "from_arrays": "data.arrays",
    "from_hugging_face": "data.sources",
    "load": "data.sources",
    "load_release": "release.release",
    "method_names": "methods.registry",
    "open_account": "runs.accounts",
    "read_account": "runs.accounts",
    "release_early": "api",
    "resume": "api",
    "train": "api",
    "verify": "release.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'understudy' has no attribute {name!r}")
    module = import_module(f"understudy.{_HOME[name]}")
    return getattr(module, "load" if name == "load_release" else name)
