"""The report: one file, complete, escaped, and stamped where it is not private."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from understudy.errors import InputError
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.privacy.claims.statements import BayesianConfig, keep_claims
from understudy.privacy.events import Event, PoissonSampling
from understudy.release.release import load
from understudy.report.report import ReportOptions, write_report
from understudy.runs.folder import RunFolder

from ..helpers.data import tiny_data
from ..release.building import edit_json, make_release
from .conftest import STAMP, write_run

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "</title><b>",
    "$\\frac{1}{2}$",
)


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
        "Training diagnostics",
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
    assert text.count("<svg") == 5  # attack, budget, loss, norms, share that was clipped


def test_the_attack_table_follows_from_the_events(run: Path, tmp_path: Path):
    """The certificate is one Gaussian with multiplier 1: the best test is right in Phi(1/2) = 69.15 % of the cases."""
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "69.2 %" in text
    assert "38.3 %" in text  # its advantage
    assert "1 in 1,000" in text
    found = float(re.search(r"1 in 100</th><td[^>]*>([\d.]+) %", text)[1])
    assert 9.2 <= found <= 10.2  # the exact trade-off at a false-positive rate of 1 % is Phi(1 - 2.3263) = 9.23 %


def test_every_guarantee_is_shown(tmp_path: Path):
    further = {"epsilon": 578.0, "delta": 1e-5, "adjacency": "replace-one", "viewer": "server"}
    release = make_release(guarantees=[{"epsilon": 4.3772, "delta": 1e-5}, further])
    text = write_report([release.save(tmp_path / "two")], tmp_path / "report.html").read_text()
    assert "epsilon 578 (delta 1e-05) per record, replace-one adjacency, against server" in text


def test_no_private_path_is_on_the_page(run: Path, tmp_path: Path):
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "ward-7" not in text
    assert "--data digits" in text
    private = write_run(tmp_path / "other", name="ward-7-patients")
    text = write_report([private], tmp_path / "report.html").read_text()
    assert "ward-7" not in text
    assert "--data YOUR-DATA" in text
    assert "--records 1000" in text


@pytest.mark.slow
def test_published_figures_stand_beside_ours_for_known_data(tmp_path: Path):
    text = write_report([write_run(tmp_path / "run", name="mnist")], tmp_path / "report.html").read_text()
    assert "DPGAN, large batch and step schedule" in text
    assert "Bie, Kamath, Zhang 2023" in text
    assert "DP-HP" not in text  # published at epsilon 1 only, and ours is above
    text = write_report([write_run(tmp_path / "own", name="scans")], tmp_path / "report.html").read_text()
    assert "Bie, Kamath, Zhang 2023" not in text


def test_a_public_page_holds_nothing_private(run: Path, tmp_path: Path):
    text = write_report([run], tmp_path / "report.html", ReportOptions(public=True)).read_text()
    assert "Budget spent over training" in text
    for words in (STAMP, "Training diagnostics", "87.5 %", "12.35", "gradient norm"):
        assert words not in text, words


def test_the_time_of_a_run_is_stamped_and_never_public(run: Path, tmp_path: Path):
    """It follows the sizes of secret batches; an earlier version left it in the public progress."""
    old, new = run, write_run(tmp_path / "newer")
    for each in (old, new):
        shutil.rmtree(each / "release")  # not released yet: nothing to verify here
    lines = [json.loads(line) for line in (new / "progress.jsonl").read_text().splitlines()[:-1]]
    RunFolder(new).timings.write_text(json.dumps({"step": 20, "seconds": 77.7}))
    shown = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    (new / "progress.jsonl").write_text("\n".join(json.dumps(line) for line in shown))
    text = write_report([old, new], tmp_path / "report.html").read_text()
    assert re.search(rf'>seconds <span class="stamp small">{STAMP}</span></th><td class="number">2</td>', text)
    section = text[text.rindex("Training diagnostics") :]
    assert section.index(STAMP) < section.index("It took 78 seconds")
    public = write_report([old, new], tmp_path / "report.html", ReportOptions(public=True)).read_text()
    assert "seconds" not in public


def test_a_kept_claim_is_shown_under_a_stamp_and_never_in_public(run: Path, tmp_path: Path):
    event = Event(noise_multiplier=2.0, sensitivity="C", sampling=PoissonSampling(rate=0.02), count=10)
    claim = BayesianAccountant(BayesianConfig(), event).claim()
    keep_claims(RunFolder(run).claims, [claim], load(run).certificate.guarantees)
    text = write_report([run], tmp_path / "report.html").read_text()
    _, shown = text.split("Bayesian DP</", 1)
    assert shown.index(STAMP) < shown.index("The guarantee of the same run: epsilon") < shown.index("epsilon_mu")
    public = write_report([run], tmp_path / "public.html", ReportOptions(public=True)).read_text()
    assert "epsilon_mu" not in public.split('id="limits"')[0]


def test_nearest_neighbours_show_real_records_under_a_stamp(run: Path, tmp_path: Path):
    options = ReportOptions(train_data=tiny_data(), test_data=tiny_data(seed=1))
    text = write_report([run / "release"], tmp_path / "report.html", options).read_text()
    assert "Nearest neighbours" in text
    assert "median distance, held-out real" in text
    assert STAMP in text
    assert "shows real records" in text
    assert text.count("data:image/png;base64,") == 12  # four classes, three beside real ones, neighbours
    with pytest.raises(InputError, match="public page"):
        write_report([run], tmp_path / "report.html", ReportOptions(train_data=tiny_data(), public=True))


def test_real_images_stand_beside_generated_ones_of_the_same_class_only_where_asked(run: Path, tmp_path: Path):
    assert "Beside real images" not in write_report([run], tmp_path / "report.html").read_text()
    options = ReportOptions(train_data=tiny_data())
    text = write_report([run / "release"], tmp_path / "report.html", options).read_text()
    section = text[text.index("Beside real images") :]
    assert section.index(STAMP) < section.index("Real records of class 0")
    assert text.count('alt="Real records of class') == 3, "the real data have three of the four classes"


def test_scores_stand_beside_chance_and_real_images(run: Path, tmp_path: Path):
    beside = {"chance": 0.1, "chance_means": "guessing", "real": 0.975, "recovered": 0.28}
    worth = {**beside, "verdict": "recovers 28 % of what real images give"}
    figures = [
        {"name": "cnn", "value": 0.345, "accuracy": 0.345, "yardstick": worth},
        {"name": "resnet", "value": 0.4, "accuracy": 0.4, "parameters": 1_228_074},
        {"name": "mlp", "value": 0.3, "accuracy": 0.3, "yardstick": "broken"},
    ]
    (run / "evaluation.json").write_text(json.dumps({"figures": figures, "samples": 500, "stamp": STAMP}))
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "recovers 28 % of what real images give (guessing 10.0 %, real images 97.5 %)" in text
    assert "Residual network (1,228,074 parameters)" in text
    known = write_run(tmp_path / "known", name="mnist")  # published figures stand in a table of their own
    (known / "evaluation.json").write_text((run / "evaluation.json").read_text())
    assert "CNN: recovers 28 %" in write_report([known], tmp_path / "report.html").read_text()


def test_class_names_are_shown_in_full(tmp_path: Path):
    names = ("parasitised cells of the second series", "uninfected cells of the second series")
    release = make_release(classes=2, class_names=names).save(tmp_path / "named")
    text = write_report([release], tmp_path / "report.html").read_text()
    for name in names:
        assert f'<span class="label">{name}</span>' in text
    assert "text-overflow" not in text


def test_a_generator_without_privacy_is_stamped_and_never_public(tmp_path: Path):
    stamp = "not private: trained without clipping or noise; do not publish"
    release = make_release(guarantees=[], events=[], not_private=stamp)
    release.save(tmp_path / "open", without_guarantee=True)
    text = write_report([tmp_path / "open"], tmp_path / "report.html").read_text()
    assert text.count(stamp) >= 1
    assert "None of these is a real record" not in text
    with pytest.raises(InputError, match="trained without privacy"):
        write_report([tmp_path / "open"], tmp_path / "report.html", ReportOptions(public=True))


def test_the_page_loads_and_runs_nothing(run: Path, tmp_path: Path):
    parsed = parse(write_report([run], tmp_path / "report.html"))
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in parsed.sources)
    assert not {"script", "link", "iframe", "object", "form"} & set(parsed.tags)
    assert "url(http" not in (tmp_path / "report.html").read_text()


def test_a_release_alone_is_not_stamped(run: Path, tmp_path: Path):
    text = write_report([run / "release"], tmp_path / "report.html").read_text()
    assert STAMP not in text
    assert "my-run/release" in text


@pytest.mark.slow
def test_several_are_compared(run: Path, tmp_path: Path):
    rgb = make_release(channels=3, classes=None).save(tmp_path / "colour")
    text = write_report([run, rgb], tmp_path / "report.html").read_text()
    assert "Side by side" in text
    assert 'href="#subject-2"' in text
    assert 'id="subject-2"' in text
    assert "no classes" in text


def test_a_release_that_does_not_verify_says_so(run: Path, tmp_path: Path):
    (run / "release" / "extra.bin").write_text("x")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert '<span class="badge refused">refused</span>' in text
    assert "is not allowed" in text


def test_a_release_that_misses_something_is_consistent_and_not_verified(run: Path, tmp_path: Path):
    edit_json(run / "release" / "certificate.json", lambda certificate: certificate.pop("config_sha256"))
    text = write_report([run], tmp_path / "report.html").read_text()
    assert '<span class="badge consistent">consistent</span>' in text
    assert "badge verified" not in text


@pytest.mark.slow
def test_a_delta_that_is_large_for_so_many_records_is_remarked(run: Path, tmp_path: Path):
    assert "Remark: delta" not in write_report([run], tmp_path / "report.html").read_text()
    edit_json(run / "release" / "certificate.json", lambda found: found["guarantees"][0].update(delta=9e-4))
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "Remark: delta 0.0009 times 1,000 declared records is 0.9" in text


@pytest.mark.slow
def test_what_only_the_trainer_can_know_is_called_stated(run: Path, tmp_path: Path):
    text = write_report([run], tmp_path / "report.html").read_text()
    stated = text.partition("Stated by the trainer")[2].partition("</ul>")[0]
    assert "randomness: drawn from the operating system" in stated
    assert "runs on this data: 1" in stated
    assert text.count("drawn from the operating system") == 1


def test_a_damaged_release_still_has_a_report(run: Path, tmp_path: Path):
    (run / "release" / "generator.safetensors").write_bytes(b"")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert '<span class="badge refused">refused</span>' in text
    assert "not those that its certificate names" in text


def test_a_run_that_goes_on_is_shown_without_release(run: Path, tmp_path: Path):
    (run / "release").rename(tmp_path / "elsewhere")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "not released yet" in text
    assert "epsilon spent" in text


def test_hostile_names_stay_text(run: Path, tmp_path: Path):
    make_release(classes=5, class_names=HOSTILE, not_covered=[HOSTILE[0]]).save(run / "release")
    (run / "run.json").write_text(json.dumps({"command": HOSTILE[1], "method": HOSTILE[0], "data": HOSTILE[0]}))
    private = [{"step": step, "gradient_norm_before": 1.0, HOSTILE[0]: step, HOSTILE[1]: step**2} for step in (1, 2, 3)]
    (run / "private" / "diagnostics.jsonl").write_text("\n".join(json.dumps(line) for line in private))
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
