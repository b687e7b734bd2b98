"""``understudy methods``: which methods there are."""

from __future__ import annotations

import typer

from understudy.cli.options import Json, print_json

NAME = "methods"


def command(as_json: Json = False) -> None:
    """List the methods: what each does and the paper it follows."""
    from understudy.methods.registry import get_method, method_names

    methods = [get_method(name) for name in method_names()]
    if as_json:
        rows = [{"name": method.name, "summary": method.summary, "paper": method.paper} for method in methods]
        print_json({"methods": rows})
        return
    for method in methods:
        typer.echo(f"{method.name}\n    {method.summary}\n    {method.paper}")
