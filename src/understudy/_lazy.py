"""Lazy modules, so that a method file can plan without importing torch and still reads top to bottom."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module and imports it when an attribute is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
