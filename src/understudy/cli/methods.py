"""``understudy methods``: which methods there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from understudy.cli import options as common

if TYPE_CHECKING:
    from understudy.methods.base import Method


NAME = "methods"


def _row(method: Method) -> dict[str, Any]:
    values = {name: getattr(method, name) for name in ("name", "summary", "paper", "private")}
    return values | {"presets": sorted(method.presets)}


def command(as_json: common.Json = False) -> None:
    """List the methods: what each does and the paper it follows."""
    from understudy.methods.registry import get_method, method_names

    methods = [get_method(name) for name in method_names()]
    if as_json:
        common.print_json({"methods": [_row(method) for method in methods]})
        return
    for method in methods:
        presets = f"\n    presets: {', '.join(sorted(method.presets))}" if method.presets else ""
        typer.echo(f"{method.name}\n    {method.summary}\n    {method.paper}{presets}")
