"""The browser of the tests of the report serves the tests of the site too."""

from __future__ import annotations

from ..report.conftest import browser

__all__ = ["browser"]
