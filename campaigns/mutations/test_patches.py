"""Every planted bug can still be planted; trying them all takes minutes and is `make test-mutations`."""

from __future__ import annotations

import pytest

from .bugs import BUGS
from .planting import SOURCE, Patch, PatchDoesNotApply, plant, planted

ROOT = SOURCE.parent


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_bug_applies_to_the_source_as_it_is_and_its_catcher_exists(bug):
    for patch in bug.patches:
        text = (SOURCE / "understudy" / patch.path).read_text(encoding="utf-8")
        for other in bug.patches[: bug.patches.index(patch)]:
            text = planted(text, other) if other.path == patch.path else text
        assert planted(text, patch) != text
    path, _, name = bug.catcher.partition("::")
    name = name.split("::")[-1].split("[")[0]
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") if name else (ROOT / path).is_file()


def test_there_are_enough_of_them_and_no_name_twice():
    assert len(BUGS) == len({bug.name for bug in BUGS}) >= 25
    assert sum(bug.by_audit for bug in BUGS) >= 5


def test_a_patch_that_does_not_apply_fails_loudly(tmp_path):
    with pytest.raises(PatchDoesNotApply, match="occurs 0 times"):
        planted("x = 1\n", Patch("x.py", "y = 1", "y = 2"))
    with pytest.raises(PatchDoesNotApply, match="occurs 2 times"):
        planted("x = 1\nx = 1\n", Patch("x.py", "x = 1", "x = 2"))


def test_a_bug_is_planted_in_a_copy_and_the_package_is_left_alone(tmp_path):
    bug = next(bug for bug in BUGS if bug.name == "noise halved")
    before = (SOURCE / "understudy" / bug.patches[0].path).read_text(encoding="utf-8")
    copy = plant(bug, tmp_path)
    assert "deviation / 2" in (copy / "understudy" / bug.patches[0].path).read_text(encoding="utf-8")
    assert (SOURCE / "understudy" / bug.patches[0].path).read_text(encoding="utf-8") == before
