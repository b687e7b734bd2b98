"""The faults campaign can fail: what it looks for is seen where it is put in front of it."""

from __future__ import annotations

import pytest

from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger

from .catalogue import faults_of
from .trial import Bench, Trial, Violation


@pytest.fixture
def trial(tmp_path):
    made = Trial(Bench(None, tmp_path, "dp-merf"), tmp_path / "trial")
    made.folder.mkdir()
    account = Ledger.create(made.ledger).account(Event(noise_multiplier=1.0, sensitivity="C", count=4, purpose="test"))
    account.spend(2)
    (made.home / "files" / "used").write_text("1 aa\n1 bb\n")
    (made.home / "files" / "noise").write_text("aa\nbb\n")
    return made


def test_a_run_in_order_passes(trial):
    trial.check()


def test_spending_that_is_not_on_record_is_seen(trial):
    with (trial.home / "files" / "used").open("a") as file:
        file.write("1 cc\n")
    with pytest.raises(Violation, match="3 executions were used, but only 2 are on record"):
        trial.check()


def test_noise_that_is_drawn_twice_is_seen_across_processes(trial):
    (trial.home / "other").mkdir()
    (trial.home / "other" / "noise").write_text("cc\naa\n")
    with pytest.raises(Violation, match="noise was used twice"):
        trial.check()


def test_half_of_the_samples_is_seen(trial):
    from PIL import Image

    (trial.home / "pictures").mkdir()
    Image.new("L", (8, 8)).save(trial.home / "pictures" / "0.png")
    with pytest.raises(Violation, match="a part of the samples"):
        trial.check_samples(trial.home / "pictures")


def test_the_campaign_has_hundreds_of_faults_in_every_phase():
    faults = [fault for method in ("dp-merf", "gs-wgan", "dpgan") for fault in faults_of(method, 1.0, mounts=False)]
    assert len(faults) > 300
    assert {fault.phase for fault in faults} == {"train", "resume", "sample", "save"}
    assert len({fault.kind for fault in faults}) >= 12
