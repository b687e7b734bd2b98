"""The browser of the report's tests."""

from ..report.conftest import browser

__all__ = ["browser"]
