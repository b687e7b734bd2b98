"""The report: one file, complete, escaped, and stamped where it is not private."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from understudy.errors import InputError
from understudy.report.report import write_report

from ..release.building import make_release

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "</title><b>",
    "$\\frac{1}{2}$",
)
STAMP = "not private: do not publish"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder as training leaves it, with an evaluation."""
    folder = tmp_path / "my-run"
    folder.mkdir()
    make_release().save(folder / "release")
    description = {"method": "dp-merf", "budget": {"epsilon": 10, "delta": 1e-5}, "command": "understudy train dp-merf"}
    (folder / "run.json").write_text(json.dumps(description))
    lines = [{"step": step, "seconds": step / 10, "loss": 1 / step, "epsilon_spent": step / 5} for step in (1, 10, 20)]
    (folder / "progress.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + '\n{"step": 3')
    figures = [
        {"name": "cnn", "value": 0.875, "accuracy": 0.875, "tested_on": 360, "stamp": STAMP},
        {"name": "fid", "value": 12.34567, "stamp": STAMP},
    ]
    (folder / "evaluation.json").write_text(json.dumps({"figures": figures, "samples": 500, "stamp": STAMP}))
    return folder


class _Parser(HTMLParser):
    """Collects what a browser would load, and what it would run."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.sources.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


def parse(path: Path) -> _Parser:
    parser = _Parser()
    parser.feed(path.read_text())
    return parser


def test_a_run_is_shown_whole(run: Path, tmp_path: Path):
    text = write_report([run], tmp_path / "new" / "report.html").read_text()
    for words in (
        "my-run",
        "verified",
        "What an attacker can gain",
        "Budget spent over training",
        "87.5 %",
        "12.35",
        STAMP,
        "understudy train dp-merf",
        "nominal_records: 1000",
        "epsilon 4.37",
        "It does not prove",
    ):
        assert words in text, words
    assert text.count("data:image/png;base64,") == 4  # one row for each class
    assert text.count("<svg") == 3


def test_the_page_loads_and_runs_nothing(run: Path, tmp_path: Path):
    parsed = parse(write_report([run], tmp_path / "report.html"))
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in parsed.sources)
    assert not {"script", "link", "iframe", "object", "form"} & set(parsed.tags)
    assert "url(http" not in (tmp_path / "report.html").read_text()


def test_a_release_alone_is_not_stamped(run: Path, tmp_path: Path):
    text = write_report([run / "release"], tmp_path / "report.html").read_text()
    assert STAMP not in text
    assert "my-run/release" in text


def test_several_are_compared(run: Path, tmp_path: Path):
    rgb = make_release(channels=3, classes=None).save(tmp_path / "colour")
    text = write_report([run, rgb], tmp_path / "report.html").read_text()
    assert "At a glance" in text
    assert 'href="#subject-2"' in text
    assert 'id="subject-2"' in text
    assert "no classes" in text


def test_a_release_that_does_not_verify_says_so(run: Path, tmp_path: Path):
    (run / "release" / "extra.bin").write_text("x")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "not verified" in text
    assert "is not allowed" in text


def test_a_damaged_release_still_has_a_report(run: Path, tmp_path: Path):
    (run / "release" / "generator.safetensors").write_bytes(b"")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "not verified" in text
    assert "not those that its certificate names" in text


def test_a_run_that_goes_on_is_shown_without_release(run: Path, tmp_path: Path):
    (run / "release").rename(tmp_path / "elsewhere")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "not released yet" in text
    assert "epsilon spent" in text


def test_hostile_names_stay_text(run: Path, tmp_path: Path):
    make_release(classes=5, class_names=HOSTILE, not_covered=[HOSTILE[0]]).save(run / "release")
    (run / "run.json").write_text(json.dumps({"command": HOSTILE[1], "method": HOSTILE[0]}))
    lines = [{"step": step, "epsilon_spent": 1.0, HOSTILE[4]: 2.0} for step in (1, 2)]
    (run / "progress.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    figures = [{"name": HOSTILE[0], "value": 1.0}, {"name": HOSTILE[1], "value": 0.5, "accuracy": 0.5}]
    (run / "evaluation.json").write_text(json.dumps({"figures": figures, "samples": HOSTILE[1]}))
    named = run.rename(tmp_path / "<b>bold")
    path = write_report([named], tmp_path / "report.html")
    parsed = parse(path)
    assert "script" not in parsed.tags
    assert parsed.handlers == []
    assert "b" not in re.findall(r"<title>.*?<(b)>", path.read_text())
    assert "49" not in re.findall(r'title="(\d+)"', path.read_text())
    assert "{{ 7 * 7 }}" in path.read_text()


@pytest.mark.parametrize(
    "evaluation", [{}, {"figures": "none"}, {"figures": [{"value": "high", "name": "x"}]}, {"figures": [[], None, {}]}]
)
def test_a_strange_evaluation_is_no_traceback(run: Path, tmp_path: Path, evaluation: dict[str, object]):
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    assert write_report([run], tmp_path / "report.html").exists()


def test_bad_input_is_one_sentence(run: Path, tmp_path: Path):
    with pytest.raises(InputError, match="no run or release"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match="does not exist"):
        write_report([tmp_path / "nothing"], tmp_path / "report.html")
    with pytest.raises(InputError, match="is a folder"):
        write_report([run], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report([run], tmp_path / "file" / "report.html")
    (run / "evaluation.json").write_text("[")
    with pytest.raises(InputError, match="evaluation"):
        write_report([run], tmp_path / "report.html")
