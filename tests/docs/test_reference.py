"""The reference made from the code: every command, public name and method, with what the code says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import typer
from website import reference

import understudy
from understudy.cli.main import app
from understudy.methods.registry import get_method, method_names


def test_every_command_stands_there_with_every_option_and_its_help():
    page = reference.commands_page()
    found = dict(reference.commands(typer.main.get_command(app), "understudy"))
    assert {"understudy train", "understudy data fetch", "understudy keys new"} <= set(found)
    for path, command in found.items():
        section = page.split(f"## {path}\n", 1)[1].split("\n## ", 1)[0]
        shown = " ".join(section.split())
        for option in (option for each in command.params for option in each.opts if option.startswith("--")):
            assert f"`{option}`" in shown, path
        for words in (getattr(each, "help", None) or "" for each in command.params):
            assert " ".join(words.split()[:4]).replace("|", "\\|") in shown, path


def test_every_public_name_stands_there_with_its_docstring():
    page = reference.python_page()
    for name in understudy.__all__:
        assert f"\n### us.{name}\n" in page
    assert "split: str = 'train'" in page
    assert "#### sample\n" in page
    assert '!!! note "Privacy"\n\n    the plan is fixed and written to the ledger before the first private read' in page


def test_a_public_name_of_no_group_stands_with_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference, "GROUPS", {"Data": ("load",)})
    monkeypatch.setattr(understudy, "__all__", ["load", "verify"])
    data, others = reference.python_page().split("## Others\n")
    assert "### us.load\n" in data
    assert "### us.verify\n" in others


def leaves(config: dict[str, object], prefix: str = "") -> Iterator[str]:
    """The settings of a config by their full names."""
    for name, value in config.items():
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]


@pytest.mark.parametrize("name", method_names())
def test_the_page_of_a_method_has_its_settings_its_presets_and_its_proof(name: str):
    page, method = reference.method_page(name), get_method(name)
    assert page.startswith(f"# {name}\n")
    for preset in method.presets:
        assert f"| `--preset {preset}` |" in page
    shown = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert set(leaves(method.config_type().model_dump())) <= shown
    assert ("**not private**" in page) is not method.private
    assert "why it holds" in page


def test_comments_beside_settings_are_their_description():
    rows = {row[0]: row for row in reference.settings(get_method("dpgan").config_type)}
    assert rows["`privacy.batch`"] == ("`privacy.batch`", "`int`", "", "B: expected units a step")
    assert rows["`privacy.clip`"][2:] == ("`1.0`", "C")
    assert rows["`runtime.precision`"][1:3] == ('`"fp32" | "tf32" | "bf16"`', '`"tf32"`')
    assert rows["`method.embedding.steps`"][2] == "`600`", "a default of the method, not of the class"
