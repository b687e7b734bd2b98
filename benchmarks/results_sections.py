"""The sections of ``docs/results.md`` beside the quality tables: Markdown from the content of result files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results_epsilon import (
    columns_in_words,
    federated_methods,
    is_federated,
    paragraph,
    promises,
    require_alike,
    viewer_columns,
)

Row = dict[str, Any]
_CERTIFIED = "certified epsilon"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar or a line break inside a cell cannot break it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def value(number: float | None, digits: int = 1, absent: str = "not measured") -> str:
    """A figure, or that there is none."""
    return absent if number is None else f"{number:,.{digits}f}"


def share(number: float | None, absent: str = "not measured") -> str:
    """A share between 0 and 1 in percent."""
    return absent if number is None else f"{100 * number:.1f} %"


def origin(row: Row) -> str:
    """Command, commit and machine."""
    commit = str(row.get("commit") or "not recorded")
    short = commit[:7] if len(commit) >= 40 else commit
    dirty = " with changes" if commit.endswith("-dirty") else ""
    machine = row.get("device") or row.get("machine") or "machine not recorded"
    command = " ".join(str(row.get("command") or "command not recorded").replace("\\\n", " ").split())
    return f"`{command}`, commit {short}{dirty}, {machine}"


def checks_passed(checks: dict[str, Row]) -> bool:
    """Whether FID on real data came out where it must, for all data sets that were tried."""
    judged = [row.get("checks", {}).get("fid", {}).get("within") for row in checks.values()]
    return bool(judged) and all(within is True for within in judged)


def checks_section(checks: dict[str, Row]) -> str:
    """Measured on real images beside what was published for them."""
    parts = ["Real training images scored against real test images, beside the published figures.\n"]
    for row in checks.values():
        rows = [
            (
                name.replace("_", " "),
                f"{judged['value']:.4g}",
                f"{judged['published']:g} ± {judged['tolerance']:g}",
                "yes" if judged["within"] else "**no**",
            )
            for name, judged in row.get("checks", {}).items()
        ]
        title = f"**{row.get('dataset', row['check'])}**: {origin(row)}\n"
        parts += [title, table(("figure", "measured", "published", "within"), rows)]
    return "\n".join(parts)


def classifiers_section(files: dict[str, Row]) -> str:
    """Accuracy by classifier, beside what the paper has for the same."""
    parts = ["Trained on what the title says, scored on the real test images.\n"]
    for stem, row in files.items():
        rows = [
            (
                str(line["classifier"]).replace("_", " "),
                share(line.get("accuracy")),
                share(line.get("published"), "-"),
                value(line.get("seconds"), absent="-"),
                value(line.get("memory_mb"), 0, absent="-"),
                str(line.get("settings", "-")),
            )
            for line in row["classifiers"]
        ]
        if row.get("average_accuracy") is not None:
            average = (share(row["average_accuracy"]), share(row.get("published_average"), "-"))
            rows.append(("average", *average, value(row.get("seconds"), absent="-"), "-", "-"))
        fast = ", fast mode" if row.get("fast") else ""
        title = (
            f"**{row.get('dataset', stem)}, trained on {row.get('trained_on', 'real data')}{fast}**: {origin(row)}\n"
        )
        parts += [title, table(("classifier", "accuracy", "published", "seconds", "MB", "settings"), rows)]
    return "\n".join(parts)


def curve_section(files: dict[str, Row]) -> str:
    """One table for each sweep that ``understudy curve`` wrote, with its picture if one is named."""
    parts = ["Each point is a run of its own with its own certificate (`understudy curve`, `understudy compare`).\n"]
    for stem, row in files.items():
        points = [mark for point in row["points"] for mark in _marks(point)]
        keys = list(dict.fromkeys(key for point in points for key in point["values"]))
        metrics = list(dict.fromkeys(name for point in points for name in point["figures"]))
        told, heads, epsilons = _epsilons(stem, row, points)
        rows = [
            (
                _with_samples(point),
                *(str(point["values"].get(key, "-")) for key in keys),
                *own,
                *(_metric(name, point["figures"].get(name)) for name in metrics),
            )
            for point, own in zip(points, epsilons, strict=True)
        ]
        picture = f"![{stem}](../benchmarks/results/{row['picture']})\n\n" if row.get("picture") else ""
        commands = "".join(f"- `{point['command']}`\n" for point in row["points"] if "command" in point)
        parts += [
            f"**{stem}**: {origin(row)}\n",
            *told,
            picture + table(("method", *keys, *heads, *metrics), rows),
            *([commands] if commands else []),
        ]
    return "\n".join(parts)


def _epsilons(stem: str, row: Row, points: Sequence[Row]) -> tuple[list[str], list[str], list[list[str]]]:
    """Words above the table, heads and cells of its columns of epsilon; certificates that are there are recomputed."""
    promised = [
        promises(stem, {"certificate": point["certificate"]} if "curve" in point else point)
        for point in row["points"]
        if "certificate" in point or is_federated(point)
    ]
    if any(is_federated(point) for point in row["points"]):
        if any("curve" in point for point in row["points"]) or len(promised) != len(points):
            raise SystemExit(f"{stem}: a table of federations needs the certificate of every line, and only these")
        return [columns_in_words(promised, "")], *viewer_columns(promised)
    require_alike(promise for found in promised for promise in found)
    whole = _whole_plans(row)
    cells = [["-" if point["epsilon"] is None else f"{point['epsilon']:g}"] for point in points]
    return whole, ["epsilon so far" if whole else _CERTIFIED], cells


def _marks(point: Row) -> list[Row]:
    """The point, or where its run was scored on the way too, one for each of these times."""
    own = ("steps", "epsilon")
    return [
        {
            "method": point["method"],
            "values": {**point["values"], "steps": mark["steps"]},
            "epsilon": mark["epsilon"],
            "figures": {name: figure for name, figure in mark.items() if name not in own},
        }
        for mark in point.get("curve", [])
    ] or [point]


def _whole_plans(row: Row) -> list[str]:
    """Of runs that were scored on the way: that their certificates charge more than the steps so far."""
    on_the_way = [point["certificate"] for point in row["points"] if "curve" in point]
    if not on_the_way:
        return []
    told = sorted({f"{certificate['guarantees'][0]['epsilon']:g}" for certificate in on_the_way})
    return [f"Scored on the way; the certificate of a run charges its whole plan: epsilon {', '.join(told)}.\n"]


def _with_samples(point: Row) -> str:
    samples = point.get("samples")
    return str(point["method"]) + (f" ([samples](../benchmarks/results/{samples}))" if samples else "")


def _metric(name: str, number: float | None) -> str:
    return value(number, 2) if name in ("fid", "fid[lenet]", "is") else share(number)


def speed_section(files: dict[str, Row]) -> str:
    """Ours beside a rival, from one run on one machine each."""
    parts = ["Each table is one run on one machine; a ratio above 1 means ours is better.\n"]
    for row in files.values():
        rows = [
            (line["what"], line["unit"], *(value(line[key], absent="") for key in ("ours", "rival", "ratio")))
            for line in row["rows"]
        ]
        parts += [origin(row) + "\n", table(("what", "unit", "ours", "rival", "ratio"), rows)]
    return "\n".join(parts)


def bugs_section(files: dict[str, Row]) -> str:
    """What ``understudy inspect`` said of generators trained on broken and on clean data."""
    parts = ["Generators of clean and of broken data, compared by samples alone ([inspect.md](inspect.md)).\n"]
    for stem, row in files.items():
        rows = [
            (
                case["bug"],
                value(case["epsilon"], 2),
                " ".join(found["sentence"] for found in case["found"]) or "nothing",
                " ".join(found["sentence"] for found in case["found_without_reference"]) or "nothing",
                "yes" if case["as_expected"] else "**no**",
            )
            for case in row["data_bugs"]
        ]
        head = ("data", "epsilon", "found beside a normal release", "found without one", "as expected")
        picture = f"![Samples of clean and broken data](../benchmarks/results/{stem}.png)\n"
        parts += [f"**{row['method']} on {row['dataset']}**: {origin(row)}\n", table(head, rows), picture]
    return "\n".join(parts)


def annotation_section(files: dict[str, Row]) -> str:
    """Accuracy of students by the number of labelled images they learn from."""
    parts = ["A CNN trained on n images of an annotated release, or on n real ones ([annotate.md](annotate.md)).\n"]
    for row in files.values():
        names = list(row["students"])
        rows = [
            (f"{count:,}", *(share(row["students"][name][place]) for name in names))
            for place, count in enumerate(row["labelled_images"])
        ]
        told = f"epsilon {value(row['epsilon'], 2)} for both, the annotator itself {share(row['annotator_accuracy'])}"
        parts += [f"**{row['annotation']} on {row['dataset']}**, {told}: {origin(row)}\n"]
        parts += [table(("labelled images", *names), rows)]
    return "\n".join(parts)


def teachers_section(files: dict[str, Row]) -> str:
    """Accuracy of classifiers that got the whole of epsilon, which was recomputed from the event on their ledger."""
    parts = [
        paragraph(
            "A classifier alone, with the whole of epsilon, on the real test images; at delta 1e-5, for one record, "
            "against the public. One run each. Seconds are of its steps, most of them beside other runs."
        )
    ]
    for row in files.values():
        lines = [
            (
                f"{line['kind']} on {line.get('features', 'scattering')}",
                f"{line['epsilon']:g}",
                share(line["accuracy"]),
                f"{line['steps']:,}",
                value(line["steps_seconds"]),
            )
            for line in row["teachers"]
        ]
        origins = sorted({origin(line) for line in row["teachers"]})
        parts.append(f"**{row['dataset']}**: {'; '.join(origins)}\n")
        parts.append(table(("teacher", "epsilon", "accuracy", "steps", "seconds"), lines))
    return "\n".join(parts)


def namings_section(files: dict[str, Row]) -> str:
    """Accuracy of a CNN by who called its training images what; the images are the same."""
    parts = [
        paragraph(
            "The same samples of a method with a teacher, called what they were *drawn* for, what the *teacher* calls "
            "them, what it calls them when all classes must come up equally often (*evened*), and what *both* make of "
            "it, as releases do ([teacher.md](teacher.md)). Accuracy of a CNN trained on so many of them (on a "
            "processor in the fast mode); for one record, against the public, at delta 1e-5. One run each."
        )
    ]
    for row in files.values():
        ways = list(row["namings"][0]["cnn_accuracy"])
        lines = [
            (
                line.get("method", "dp-merf"),
                f"{line['records']:,}",
                f"{line['epsilon']:g}",
                f"{line.get('samples', 2000):,}",
                *(share(line["cnn_accuracy"][way], "a class is missing") for way in ways),
                share(line["teacher_accuracy"]),
            )
            for line in row["namings"]
        ]
        parts.append(f"**{row['dataset']}**: {'; '.join(sorted({origin(line) for line in row['namings']}))}\n")
        parts.append(table(("method", "records", "epsilon", "samples", *ways, "the teacher on real images"), lines))
    return "\n".join(parts)


def repeats_section(files: dict[str, Row], printed: dict[str, Row]) -> str:
    """How far the figures of a row move when it is trained again by its own command."""
    measured = {"fid": value, "cnn_accuracy": share, "resnet_accuracy": share, "inception_score": value}
    lines, origins = [], []
    for again in files.values():
        row, runs = printed[again["row"]], again["repeats"]
        for figure, written in measured.items():
            found = [run[figure] for run in runs if figure in run]
            if found:
                spread = f"{written(sum(found) / len(found))} ({written(min(found))} to {written(max(found))})"
                name = figure.removesuffix("_accuracy").replace("_", " ")
                lines.append((f"`{again['row']}`", name, written(row.get(figure)), str(len(found)), spread))
        origins += sorted({origin({**run, "command": again["command"]}) for run in runs})
    head = ("row", "figure", "as printed above", "runs again", "their mean (least to most)")
    told = paragraph(
        "Each run is the command of its row once more, with randomness of its own (`benchmarks/repeat.py`)."
    )
    return "\n".join([told, table(head, lines), "\n".join(f"- {each}" for each in origins) + "\n"])


def real_images_section(files: dict[str, Row]) -> str:
    """FID of training images and accuracies of networks that learnt from them, on the test images."""
    found = [(row["real_images"], figure) for row in files.values() for figure in row["figures"]]
    lines = [
        (
            dataset,
            figure["name"],
            value(figure["value"], 2) if figure["name"] == "fid" else share(figure["value"]),
            origin(figure),
        )
        for dataset, figure in found
    ]
    told = "All training images of a data set, scored as generated ones are: nothing is private here."
    return "\n".join([paragraph(told), table(("data", "figure", "real images", "where it comes from"), lines)])


def audits_section(files: dict[str, Row]) -> str:
    """What run audits of every method showed beside the claim, and whether the same attack sees missing noise."""
    parts = [
        "Whole runs on public digits with canaries in them ([audit.md](audit.md)); a run audit bounds epsilon from "
        "below, and no bound may exceed the claim. In a *control* the mechanisms leave out their noise: an attack "
        "that then exceeds the claim has the power to find such a bug, one that does not tells little.\n"
    ]
    for row in files.values():
        rows = [
            _audit_cells(row, method, attack, claim)
            for method, claims in sorted(row["claims"].items())
            for attack, claim in claims.items()
        ]
        deltas = sorted({claim["delta"] for claims in row["claims"].values() for claim in claims.values()})
        told = (
            f"**{row['runs']} runs of each method at epsilon {row['epsilon']:g}, delta {row['delta']:g}**, "
            f"{row['canaries']} canaries each, all bounds together at {100 * row['confidence']:g} % (corrected for "
            f"{row['corrected_for']:,}); claims are against the public for the unit of the line, recomputed at the "
            f"smaller delta of the audit ({', '.join(f'{delta:.2g}' for delta in deltas)}): {origin(row)}\n"
        )
        head = (
            "method",
            "unit",
            "attack",
            "claim",
            "largest bound",
            "right guesses",
            "runs below the claim",
            "controls above it",
        )
        parts += [told, table((*head, "least bound of controls"), rows)]
    return "\n".join(parts)


def _audit_cells(row: Row, method: str, attack: str, claim: Row) -> tuple[str, ...]:
    found: dict[bool, list[Row]] = {False: [], True: []}
    for run in row["audit_runs"]:
        if run["method"] == method:
            found[run["broken"]].append(run["attacks"][attack])
    guesses, correct = (sum(figure[name] for figure in found[False]) for name in ("guesses", "correct"))
    runs, controls = ([figure["epsilon_lower"] for figure in found[broken]] for broken in (False, True))
    below, above = (sum(bound <= claim["claimed"] for bound in some) for some in (runs, controls))
    return (
        method,
        _unit_of_events(method, claim["events"]),
        attack,
        value(claim["claimed"], 2),
        value(max(runs, default=None), 2),
        share(correct / guesses if guesses else None),
        f"{below} of {len(runs)}" if below == len(runs) else f"**{below} of {len(runs)}**",
        f"{len(controls) - above} of {len(controls)}",
        value(min(controls, default=None), 2),
    )


def _unit_of_events(method: str, events: Sequence[Row]) -> str:
    """What a claim protects; a federation never has it left out."""
    usual = None if method in federated_methods() else "record"
    units = {event.get("unit", usual) for event in events}
    if len(units) != 1 or None in units:
        raise SystemExit(f"the run audits of {method} do not state the one unit that their claim is for")
    return str(units.pop())


def other_section(files: dict[str, Row]) -> str:
    """Files of a kind that has no section of its own: where they are and how they came about."""
    return (
        "\n".join(f"- [{stem}](../benchmarks/results/{stem}.json): {origin(row)}" for stem, row in files.items()) + "\n"
    )
