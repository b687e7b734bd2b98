"""The report in a real browser: every picture drawn, nothing loaded, no complaint, never wider than the window."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from understudy.experiments.curves import Curve, Point
from understudy.experiments.total import Total
from understudy.report.report import ReportOptions, write_report

from ..helpers.data import tiny_data
from ..release.building import make_release
from .browser import Browser, Page
from .conftest import write_run

PHONE, DESKTOP = 390, 1280
HOSTILE = "<img src=http://example.org/x onerror=alert(1)><script>alert(2)</script>-" + "long" * 30

_UNDRAWN = "[...document.images].filter(i => !(i.complete && i.naturalWidth && i.clientWidth)).length"
_FLAT_CHARTS = """[...document.querySelectorAll('svg')].filter(s => {
  const box = s.getBoundingClientRect();
  return box.width < 100 || box.height < 50 || !s.querySelector('path'); }).length"""
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_CONTRAST = """(() => {
  const linear = x => x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = c => { const v = c.map(linear);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const parse = t => t.match(/[\\d.]+/g).map(Number);
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  let worst = 21;
  const words = 'p, li, th, td, dt, dd, h1, h2, h3, h4, a, b, .badge, .stamp, figcaption, pre';
  for (const e of document.querySelectorAll(words)) {
    if (!e.textContent.trim()) continue;
    const a = luminance(parse(getComputedStyle(e).color).slice(0, 3)), b = luminance(ground(e));
    worst = Math.min(worst, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)); }
  return worst; })()"""


def assert_sound(page: Page, pictures: int, charts: int) -> None:
    assert page.complaints == []
    assert page.requests == []
    assert page.ask("document.images.length") == pictures
    assert page.ask(_UNDRAWN) == 0
    assert page.ask("document.querySelectorAll('svg').length") == charts
    assert page.ask(_FLAT_CHARTS) == 0
    assert page.ask("[...document.images].filter(i => !i.alt).length") == 0
    assert page.ask("[...document.querySelectorAll('svg')].filter(s => !s.getAttribute('aria-label')).length") == 0
    assert page.ask("document.querySelectorAll('h1').length") == 1
    assert page.ask("document.querySelectorAll('script, link, iframe').length") == 0


def headings_skip_no_level(page: Page) -> bool:
    levels = page.ask("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    return all(below <= above + 1 for above, below in pairwise(levels))


def write_curve(folder: Path) -> Path:
    folder.mkdir()
    points = [
        Point(
            f"p{n}", "gs-wgan", {"privacy.queries": n * 100, "privacy.subsets": k}, 1, 1.0 * n, 1e-5, {"cnn": n / 10}, n
        )
        for n in (1, 2, 4)
        for k in (10, 20)
    ]
    norms = [{"step": step, "gradient_norm_before": 1.0 + step} for step in (1, 2, 3)]
    points[0].norms.extend(norms)
    total = Total(HOSTILE, 6, 7.5, 1e-5)
    curve = Curve(("privacy.queries", "privacy.subsets"), ("cnn",), tuple(points), (total,), {HOSTILE: HOSTILE})
    (folder / "curve.json").write_text(json.dumps(curve.as_dict()))
    return folder


@pytest.mark.parametrize("width", [PHONE, pytest.param(DESKTOP, marks=pytest.mark.slow)])
def test_one_run_with_everything(browser: Browser, run: Path, tmp_path: Path, width: int):
    options = ReportOptions(train_data=tiny_data(), test_data=tiny_data(seed=1))
    page = browser.open(write_report([run], tmp_path / "report.html", options), width)
    assert_sound(page, pictures=4 + 2 * 3 + 2, charts=6)
    assert page.ask(_OVERFLOW) == 0
    assert headings_skip_no_level(page)


@pytest.mark.parametrize("width", [PHONE, pytest.param(DESKTOP, marks=pytest.mark.slow)])
def test_several_runs_a_release_and_a_curve_side_by_side(browser: Browser, run: Path, tmp_path: Path, width: int):
    colour = make_release(channels=3, classes=None).save(tmp_path / "colour")
    mnist = write_run(tmp_path / "mnist-run", name="mnist")
    curve = write_curve(tmp_path / "sweep")
    page = browser.open(write_report([run, mnist, colour, curve], tmp_path / "report.html"), width)
    assert_sound(page, pictures=3 + 4 + 4 + 5, charts=1 + 5 + 5 + 1 + 3)
    assert page.ask(_OVERFLOW) == 0
    assert headings_skip_no_level(page)
    for place in ("comparison", "subject-1", "subject-2", "subject-3", "curve-1"):
        assert page.ask(f"document.querySelectorAll('nav a[href=\"#{place}\"]').length") == 1
        assert page.ask(f"document.getElementById('{place}') !== null")


@pytest.mark.parametrize("width", [pytest.param(PHONE, marks=pytest.mark.slow), DESKTOP])
def test_hostile_names_stay_text(browser: Browser, run: Path, tmp_path: Path, width: int):
    names = (HOSTILE, '"><svg onload=alert(3)>', "{{ 7 * 7 }}", "W" * 80)
    make_release(class_names=names, not_covered=[HOSTILE], remarks=[HOSTILE]).save(run / "release")
    figures = [{"name": HOSTILE, "value": 0.5, "accuracy": 0.5}, {"name": HOSTILE, "value": 3.0}]
    (run / "evaluation.json").write_text(json.dumps({"figures": figures, "samples": HOSTILE, "left_out": [HOSTILE]}))
    lines = [{"step": step, "epsilon_spent": 1.0, HOSTILE: step**2} for step in (1, 2, 3)]
    (run / "progress.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    named = run.rename(tmp_path / HOSTILE.replace("/", "")[:200])
    page = browser.open(write_report([named, write_curve(tmp_path / "sweep")], tmp_path / "report.html"), width)
    assert_sound(page, pictures=4, charts=1 + 2 + 2 + 3)
    assert page.ask("[...document.querySelectorAll('*')].filter(e => e.onerror || e.onload).length") == 0
    assert page.ask(_OVERFLOW) == 0


def test_tables_scroll_on_a_phone_instead_of_being_squeezed(browser: Browser, tmp_path: Path):
    run = write_run(tmp_path / "run", name="mnist")
    page = browser.open(write_report([run], tmp_path / "report.html"), PHONE)
    rows = page.ask("[...document.querySelectorAll('tbody tr')].map(r => r.getBoundingClientRect().height)")
    assert len(rows) > 10
    assert max(rows) < 150
    scrolling = page.ask("[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length")
    assert scrolling >= 1
    assert page.ask("[...document.querySelectorAll('.scroll')].every(s => s.tabIndex === 0)"), "by keyboard too"


@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read_in_light_and_dark(browser: Browser, run: Path, tmp_path: Path, dark: bool):
    page = browser.open(write_report([run, write_curve(tmp_path / "sweep")], tmp_path / "report.html"))
    page.set_view(DESKTOP, dark=dark)
    ground = page.ask("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(17, 24, 28)") == dark
    assert page.ask(_CONTRAST) >= 4.5
    line = page.ask("getComputedStyle(document.querySelector('svg text')).fill")
    assert (line == "rgb(223, 229, 228)") == dark  # charts follow the ground


def test_it_prints_on_white_with_every_check_open(browser: Browser, run: Path, tmp_path: Path):
    page = browser.open(write_report([run], tmp_path / "report.html"))
    page.set_view(690, dark=True, media="print")
    assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.ask("document.querySelector('details').open") is False
    assert page.ask("document.querySelector('details li').getBoundingClientRect().height") > 5
    assert page.ask(_OVERFLOW) == 0
    assert page.pdf().startswith(b"%PDF-")


def test_the_browser_notices_what_the_tests_are_about(browser: Browser, tmp_path: Path):
    """A page that breaks every rule: otherwise the tests above could not fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><h1>x</h1><div style='width:2000px'>wide</div><img src='missing.png'>"
        "<img src='data:image/png,x'><p style='color:#ccc;background:#fff'>pale</p><svg></svg>"
        "<script>console.error('no'); throw Error('never')</script>"
    )
    page = browser.open(bad, PHONE)
    assert any("missing.png" in address for address in page.requests)
    assert len(page.complaints) >= 2
    assert page.ask(_UNDRAWN) == 2
    assert page.ask(_FLAT_CHARTS) == 1
    assert page.ask(_OVERFLOW) > 1000
    assert page.ask(_CONTRAST) < 2


@pytest.mark.slow
def test_a_missing_browser_is_a_failure_where_it_is_required(tmp_path: Path):
    """What continuous integration relies on: the tests above cannot be skipped there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{_FIRST}"]
    required = {**os.environ, "PATH": str(tmp_path), "UNDERSTUDY_NEEDS_CHROMIUM": "1"}
    result = subprocess.run(command, env=required, capture_output=True, text=True, timeout=120)
    assert "is installed" in result.stdout
    assert result.returncode == 1


_FIRST = "test_it_prints_on_white_with_every_check_open"
