"""The site as it is built: strictly, from real files, opened in a real browser from its folder, without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..report.browser import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (400, 1400)
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_UNDRAWN = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
_UNNAMED = "[...document.querySelectorAll('.md-content img')].filter(i => !i.alt).map(i => i.src)"
_FOCUS = """(() => { const e = document.activeElement, r = e.getBoundingClientRect();
  return {name: e.tagName, to: e.htmlFor || '', text: (e.textContent || '').trim(), left: r.left, right: r.right,
          seen: e.checkVisibility({visibilityProperty: true})}; })()"""
_CONTRAST = """(() => {
  const parse = t => { const v = t.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const over = (top, below) => [0, 1, 2].map(k => top[3] * top[k] + (1 - top[3]) * below[k]);
  const ground = e => e ? over(parse(getComputedStyle(e).backgroundColor), ground(e.parentElement)) : [255, 255, 255];
  const linear = x => x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  let worst = [21, ''];
  const words = '.md-content :is(p, li, th, td, h1, h2, h3, h4, a, code, pre span):not(.headerlink), .md-tabs a';
  for (const e of document.querySelectorAll(words)) {
    if (!e.textContent.trim()) continue;
    const below = ground(e), a = luminance(over(parse(getComputedStyle(e).color), below)), b = luminance(below);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.textContent.trim().slice(0, 60)]; }
  return worst; })()"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site in a folder, built as ``make docs`` builds it."""
    pytest.importorskip("material", reason="the extra [docs] is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def wait_for(holds: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_whole_fits_the_window_and_loads_nothing_from_elsewhere(browser: Browser, site: Path, width: int):
    assert len(pages(site)) > 40
    for path in pages(site):
        page = browser.open(path, width)
        assert page.complaints == [], path
        assert [each for each in page.requests if not each.startswith(f"{site.as_uri()}/")] == [], path
        assert page.ask(_OVERFLOW) <= 0, path
        assert page.ask(_UNDRAWN) == [], path
        assert page.ask(_UNNAMED) == [], path
        assert page.ask("document.querySelectorAll('h1').length") == 1, path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["how-to.html", "results.html", "reference/python.html"])
def test_words_can_be_read_in_light_and_dark(browser: Browser, site: Path, name: str, dark: bool):
    page = browser.open(site / name, 1400)
    page.set_view(1400, dark=dark)
    wait_for(lambda: page.ask("document.body.dataset.mdColorScheme") == ("slate" if dark else "default"))
    assert page.ask("(document.body.style.transition = 'none', 1)")
    ratio, words = page.ask(_CONTRAST)
    assert ratio >= 4.5, words


def test_no_file_of_the_site_names_a_font_or_a_script_of_somebody_else(site: Path):
    for path in pages(site):
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(https?:[^"]*)"', path.read_text("utf-8"))
        assert loaded == [], path


@pytest.mark.parametrize("width", WIDTHS)
def test_search_answers_by_keyboard_from_a_file(browser: Browser, site: Path, width: int):
    page = browser.open(site / "index.html", width)
    page.press("/")
    wait_for(lambda: page.ask("document.activeElement.name") == "query")
    wait_for(lambda: "Type to start" in page.ask("document.querySelector('.md-search-result__meta').textContent"))
    page.type("accountan")
    page.press("t")
    wait_for(lambda: page.ask("document.querySelectorAll('.md-search-result__item').length") > 0)
    page.press("ArrowDown")
    wait_for(lambda: page.ask("document.activeElement.className").startswith("md-search-result__link"))
    page.press("Enter")
    wait_for(lambda: "h=accountant" in page.ask("location.href"))


def walk(page: Page, most: int) -> list[dict]:
    """Where the key Tab leads, one after the other."""
    stops = []
    for _ in range(most):
        page.press("Tab")
        stops.append(page.ask(_FOCUS))
    return stops


@pytest.mark.parametrize("width", WIDTHS)
def test_by_keyboard_one_reaches_content_and_other_pages_and_is_never_lost(browser: Browser, site: Path, width: int):
    page = browser.open(site / "epsilon.html", width)
    stops = walk(page, 40)
    assert stops[0]["text"] == "Skip to content"
    assert all(stop["seen"] and stop["right"] >= 0 and stop["left"] <= width for stop in stops)
    reached = [stop["text"] for stop in stops]
    assert "audit.md" in reached, "a link in the text"
    assert ("Methods" in reached) is (width == 1400), "the sections; on a phone they are in the menu"


def test_on_a_phone_the_menu_opens_by_keyboard_and_leads_on(browser: Browser, site: Path):
    page = browser.open(site / "epsilon.html", 400)
    while page.ask(_FOCUS)["to"] != "__drawer":
        page.press("Tab")
    page.press("Enter")
    wait_for(lambda: page.ask("document.activeElement.closest('.md-nav--primary') !== null"))
    stops = walk(page, 6)
    assert all(stop["seen"] and 0 <= stop["left"] < 400 for stop in stops)
    assert "Threat model" in [stop["text"] for stop in stops]


def test_a_link_to_what_has_no_place_on_the_site_stops_the_build(monkeypatch: pytest.MonkeyPatch):
    exceptions = pytest.importorskip("mkdocs.exceptions", reason="the extra [docs] is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "website"))
    from website import hooks

    assert hooks.site_address("docs/privacy.md") == "privacy.md"
    assert hooks.site_address("benchmarks/results/x.png") == "measured/x.png"
    with pytest.raises(exceptions.PluginError, match="has no place on the site"):
        hooks.site_address("src/understudy/no_such_file.py")
    assert hooks.site_address("src/understudy/api.py") == "files/src/understudy/api.py"


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path):
    pytest.importorskip("nbclient", reason="the extra [docs] is not installed")
    from website.notebooks import NOTEBOOKS, run

    notebook = run(NOTEBOOKS / "first-hour.ipynb", tmp_path)
    told = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert re.search(r"^verified 2\.99\d+$", told, re.MULTILINE)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "scans-eps3" / "certificate.json").is_file()


def test_the_pictures_are_those_that_the_code_draws():
    from website.figures import PICTURES, pictures

    for name, text in pictures().items():
        assert (PICTURES / name).read_text(encoding="utf-8") == text, f"{name}: run python website/figures.py"
