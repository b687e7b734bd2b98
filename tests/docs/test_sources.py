"""The docs as they are written: links lead somewhere, pages are on the site, commands and settings exist as shown."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from website.reference import commands, settings

from understudy.cli.main import app
from understudy.methods.registry import get_method, method_names

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.glob("**/*.ipynb"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("**/*.md")), *NOTEBOOKS]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """The Markdown of a page or of the cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown")


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def links(text: str) -> Iterator[str]:
    """Targets of links and pictures outside of code."""
    plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    yield from LINK.findall(plain)


def anchors(path: Path) -> set[str]:
    """The anchors of a page: its headings in lower case, without punctuation, with hyphens for spaces."""
    headings = re.findall(r"^#{1,6} (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in words}


def broken(path: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in links(text):
        target, _, anchor = link.partition("#")
        if re.match(r"https?:|mailto:", link):
            continue
        goal = (path.parent / target).resolve() if target else path
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path):
    assert broken(path, prose(path)) == []


def test_a_broken_link_is_noticed():
    page = DOCS / "index.md"
    text = "[a](no-such-page.md) [b](privacy.md#no-such-section) ![c](pictures/none.png) [d](#nowhere) [e](tour.md)"
    assert broken(page, text) == ["no-such-page.md", "privacy.md#no-such-section", "pictures/none.png", "#nowhere"]


def test_every_page_is_on_the_site():
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    written = {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in PAGES if DOCS in path.parents}
    assert written <= named
    made = {"reference/commands.md", "reference/python.md", "contributing.md", "security.md", "changelog.md"}
    assert named - written == made


def test_the_site_asks_nothing_of_the_network():
    sources = [ROOT / "mkdocs.yml", *DOCS.glob("assets/*")]
    for path in sources:
        assert re.findall(r"https?://(?!www\.w3\.org/)", path.read_text(encoding="utf-8")) == [], path
    for path in PAGES:
        pictures = re.findall(r"!\[[^\]]*\]\(\s*https?:|<(?:img|script|link|iframe)\b[^>]*https?:", prose(path))
        assert pictures == [], path


def test_every_method_has_its_row_in_the_guide():
    rows = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "methods.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == method_names()


# What is shown works


def shown_commands(path: Path) -> Iterator[str]:
    """The lines that call ``understudy`` in the shell blocks of a page."""
    for language, code in FENCE.findall(prose(path)):
        if language == "sh":
            for line in code.replace("\\\n", " ").splitlines():
                if line.startswith("understudy "):
                    yield line


@cache
def settings_of(method: str) -> set[str]:
    return {row[0].strip("`") for row in settings(get_method(method).config_type)}


def refused(line: str, known: dict[str, click.Command]) -> str | None:
    """Why a shown command cannot be called like that, if so."""
    words = shlex.split(line, comments=True)
    path = max((name for name in known if words[: len(name.split())] == name.split()), key=len, default=None)
    if path is None or isinstance(known[path], click.Group):
        return None if words[1].startswith("-") else f"there is no {line!r}"
    given = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    options = {option for each in known[path].params for option in (*each.opts, *each.secondary_opts)}
    unknown = [option for option in given if option not in options | {"--help", "-h"}]
    if unknown:
        return f"{path} has no {unknown[0]}"
    if words[1] in ("train", "plan") and words[2] in method_names():
        wanted = [words[number + 1].split("=")[0] for number, word in enumerate(words) if word == "--set"]
        unknown = [name for name in wanted if name not in settings_of(words[2])]
        return f"{words[2]} has no setting {unknown[0]}" if unknown else None
    return None


@pytest.fixture(scope="module")
def known() -> dict[str, click.Command]:
    return dict(commands(typer.main.get_command(app), "understudy"))


def test_every_command_that_is_shown_exists_with_its_options(known: dict[str, click.Command]):
    lines = [line for path in PAGES for line in shown_commands(path)]
    assert len(lines) > 50
    assert [problem for line in lines if (problem := refused(line, known))] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("understudy trian dp-merf", "there is no 'understudy trian dp-merf'"),
        ("understudy data fetsh mnist", "there is no 'understudy data fetsh mnist'"),
        ("understudy verify runs/x --keys a", "understudy verify has no --keys"),
        ("understudy train dp-merf --set method.stepps=3", "dp-merf has no setting method.stepps"),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(known: dict[str, click.Command], line: str, problem: str):
    assert refused(line, known) == problem


# Notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_as_it_came_out_of_one_run(path: Path):
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    told = "".join("".join(output.get("text", "")) for output in outputs)
    assert "verified" in told
    assert str(ROOT) not in json.dumps(outputs), "nothing of the machine that ran it"
