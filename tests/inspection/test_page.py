"""The page of an inspection: self-contained, stamped where it must be, and sound in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from understudy.errors import InputError
from understudy.inspection.inspection import inspect_samples
from understudy.inspection.page import render, write_page
from understudy.inspection.samples import real_samples

from ..report.browser import Browser
from .building import digits, quarter_turn, samples, some

_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_UNDRAWN = "[...document.images].filter(i => !(i.complete && i.naturalWidth && i.clientWidth)).length"
HOSTILE = "<img src=http://example.org/x onerror=alert(1)><script>alert(2)</script>-" + "long" * 30


def test_findings_stand_on_the_page_in_words_and_with_their_figures():
    text = render(inspect_samples(samples(1, some(quarter_turn)), samples(0)))
    assert "turned by 90 degrees to the left" in text
    assert "margin 0.08, false-alarm rate 1e-06" in text
    assert "post-processing" in text
    assert "do not publish" not in text


def test_a_page_without_findings_says_so():
    assert "Nothing was found" in render(inspect_samples(samples(1), samples(0)))


def test_a_page_with_real_data_is_stamped():
    text = render(inspect_samples(samples(1), real_samples(digits(), 100)))
    assert "not private: do not publish" in text
    assert "post-processing" not in text


def test_a_folder_is_no_page(tmp_path: Path):
    with pytest.raises(InputError, match="is a folder; name a file"):
        write_page(inspect_samples(samples(1)), tmp_path)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("reference", ["none", "normal", "real"])
def test_the_page_is_sound_in_a_browser(browser: Browser, tmp_path: Path, width: int, reference: str):
    normal = {"none": None, "normal": samples(0), "real": real_samples(digits(), 100)}[reference]
    page = browser.open(
        write_page(inspect_samples(samples(1, some(quarter_turn)), normal), tmp_path / "inspection.html"), width
    )
    assert page.complaints == []
    assert page.requests == []
    assert page.ask("document.images.length") == 2 + 2 * (10 if reference == "none" else 20)
    assert page.ask(_UNDRAWN) == 0
    assert page.ask("[...document.images].filter(i => !i.alt).length") == 0
    assert page.ask("document.querySelectorAll('script, link, iframe').length") == 0
    assert page.ask("document.querySelectorAll('h1').length") == 1
    assert page.ask(_OVERFLOW) == 0


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path):
    names = (HOSTILE, "{{ 7 * 7 }}", *(f"name {label}" for label in range(8)))
    hostile = [
        replace(each, name=HOSTILE, domain=each.domain.model_copy(update={"class_names": names}))
        for each in (samples(1, some(quarter_turn)), samples(0))
    ]
    page = browser.open(write_page(inspect_samples(*hostile), tmp_path / "inspection.html"), 390)
    assert page.complaints == []
    assert page.ask("[...document.querySelectorAll('*')].filter(e => e.onerror || e.onload).length") == 0
    assert page.ask(_OVERFLOW) == 0
