"""Edited certificates of good releases: how they are written, and when the word *verified* would be false of one.

The forger knows the format: fields are dropped, integers are of any size, numbers lie at the edge of what a float
holds, one key stands twice, numbers are written as text; and there are the edits that pay: more noise, a smaller
epsilon, a larger delta, a viewer less. ``verify`` must give a verdict of each, the same with and without ``--json``,
and *verified* only where the certificate still says what the good one says, or promises less.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from understudy.cli.verify import conclude, tell
from understudy.errors import CheckError
from understudy.privacy import accounting, viewers
from understudy.privacy.accounting import figures
from understudy.privacy.certificate import Guarantee
from understudy.privacy.events import Event
from understudy.release.verify import Verification, verify

from . import seeds

_TWICE = "__this key occurs twice__"
_EDGES = (5e-324, 2.2e-308, 1e-300, 1e-15, 0.0, -0.0, 1.0, 1e15, 1e25, 1e300, 1.7976931348623157e308)


# Writing


def edit(content: bytes, chance: random.Random) -> bytes:
    """One to three edits of a certificate, and in one of ten a key that occurs twice."""
    document = json.loads(content)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
        chance.choice(_EDITS)(document, chance)
    text = json.dumps(document)
    if chance.random() < 0.1:
        text = _with_a_key_twice(document, chance)
    return text.encode()


def _somewhere(document: Any, chance: random.Random, *kinds: type) -> tuple[Any, Any] | None:
    """A list or object in the document and a key of it; with ``kinds``, one whose value is of these."""

    def within(value: Any) -> list[tuple[Any, Any]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [place for key, item in items for place in ((value, key), *within(item))]

    places = [(parent, key) for parent, key in within(document) if not kinds or type(parent[key]) in kinds]
    return chance.choice(places) if places else None


def _drop(document: Any, chance: random.Random) -> None:
    if (place := _somewhere(document, chance)) is not None:
        del place[0][place[1]]


def _integer(document: Any, chance: random.Random) -> None:
    """An integer of any size where there was one."""
    if (place := _somewhere(document, chance, int)) is not None:
        size = chance.choice((chance.randrange(70), chance.randrange(70), chance.randrange(5000)))
        place[0][place[1]] = chance.choice((1, 1, 1, -1)) * 2**size + chance.choice((-1, 0, 1))


def _edge(document: Any, chance: random.Random) -> None:
    """A number at the edge of what a float holds, or next to the one that was there."""
    if (place := _somewhere(document, chance, float, int)) is not None:
        here = float(min(place[0][place[1]], 10**300))
        beside = (math.nextafter(here, math.inf), math.nextafter(here, -math.inf), here * 0.999, here * 1.001)
        place[0][place[1]] = chance.choice((*_EDGES, *beside))


def _scale(document: Any, chance: random.Random) -> None:
    if (place := _somewhere(document, chance, float, int)) is not None:
        factor = chance.choice((0.1, 0.5, 0.9, 1.1, 2, 10, 1000))
        value = min(place[0][place[1]], 10**300) * factor
        place[0][place[1]] = int(value) if type(place[0][place[1]]) is int else value


def _retype(document: Any, chance: random.Random) -> None:
    """The same value in another type of JSON."""
    if (place := _somewhere(document, chance, float, int, str, bool)) is None:
        return
    value = place[0][place[1]]
    other = [str(value), [value], {"value": value}, None]
    if isinstance(value, (bool, int, float)):
        other += [bool(value), math.nan, math.inf, -value]
        other += [int(value)] if abs(value) < 1e300 else []
        other += [float(value)] if abs(value) < 10**300 else []
    place[0][place[1]] = chance.choice(other)


def _with_a_key_twice(document: Any, chance: random.Random) -> str:
    """The text with a key that has two values; which of them counts depends on who reads."""
    place = _somewhere(document, chance)
    if place is None or not isinstance(place[0], dict):
        return json.dumps(document)
    parent, key = place
    value = chance.choice((0.1, 1, "x", True, copy.deepcopy(parent[key])))
    entries = [(_TWICE, value), *parent.items()]
    if chance.random() < 0.5:
        entries.append(entries.pop(0))
    parent.clear()
    parent.update(entries)
    return json.dumps(document).replace(json.dumps(_TWICE), json.dumps(key))


def _repeat(document: Any, chance: random.Random) -> None:
    """An item of a list once more, or the list in another order."""
    if (place := _somewhere(document, chance, list)) is not None and place[0][place[1]]:
        items = place[0][place[1]]
        items.append(copy.deepcopy(chance.choice(items))) if chance.random() < 0.5 else chance.shuffle(items)


def _tempting(document: Any, chance: random.Random) -> None:
    """What a forger would like to be believed."""
    with suppress(KeyError, IndexError, TypeError, AttributeError):  # an earlier edit took away what this one needs
        chance.choice(_TEMPTATIONS)(document, chance)


def _set(part: str, values: dict[str, tuple[Any, ...]]) -> Callable[[Any, random.Random], None]:
    def change(document: Any, chance: random.Random) -> None:
        places = [document] if not part else document[part]
        key = chance.choice(list(values))
        chance.choice(places)[key] = chance.choice(values[key])

    return change


def _more_noise(document: Any, chance: random.Random) -> None:
    """More noise than there was, and an epsilon that follows from it."""
    for event in document["events"]:
        event["noise_multiplier"] *= chance.choice((3.0, 1000.0))
    for guarantee in document["guarantees"]:
        guarantee["epsilon"] *= 0.5


def _renamed(document: Any, chance: random.Random) -> None:
    document["method"] = chance.choice(("another", "dpgan", "dp-merf", "gs-wgan", "annotated", "gan", "fedavg-gan"))


def _unbound(document: Any, chance: random.Random) -> None:
    del document["config_sha256"]
    _more_noise(document, chance)


def _left_out(document: Any, chance: random.Random) -> None:
    kept = chance.randrange(len(document["guarantees"]))
    document["guarantees"] = document["guarantees"][kept : kept + chance.choice((1, 2))]


_EPSILON = (0.0, 0.01, 0.1, 1.0, 1e25)
_TEMPTATIONS: tuple[Callable[[Any, random.Random], None], ...] = (
    _set("guarantees", {"epsilon": _EPSILON, "delta": (0.5, 0.1, 1e-3, 0.026, 1e-9), "viewer": ("server", "client")}),
    _set("guarantees", {"unit": ("client", "record"), "adjacency": ("replace-one",), "coalition": (1, 2, 3)}),
    _set("guarantees", {"delta_parts": ({}, {"accountant": 1e-5}, {"limits": 9e-6}, {"accountant": 5e-6, "x": 5e-6})}),
    _set("events", {"noise_multiplier": (1e3, 5e-324), "noise_parts": (10, 10**400, 4), "count": (1, 10**6)}),
    _set("events", {"sampling": ({"kind": "none"}, {"kind": "poisson", "rate": 1e-9}), "sensitivity": ("C", "2C")}),
    _set("events", {"planned": (0, 1), "executed": (0, 1), "unit": ("client", "record"), "purpose": ("public data",)}),
    _set("", {"not_covered": ([], ["nothing"]), "randomness": ("os-entropy", "seeded: not for release")}),
    _set("", {"runs_on_this_data": (1, 10**25), "plan_raised": (True,), "not_private": ("no",), "remarks": (["ok"],)}),
    _set("", {"assumed_public": (["x"], ["nominal_records: 99999999"]), "data_dependent": ([], None)}),
    _more_noise,
    _renamed,
    _unbound,
    _left_out,
)
_EDITS = (_drop, _drop, _integer, _edge, _scale, _retype, _repeat, _tempting, _tempting, _tempting)


# Judging


def give_verdict(content: bytes, folder: Path) -> None:
    """``verify`` on a good release with another certificate: a verdict, told in both ways, and no false *verified*."""
    good = _good_release(content)
    place = folder / "release"
    place.mkdir()
    for path in good.iterdir():
        if path.name != "certificate.json":
            os.link(path, place / path.name) if path.stat().st_dev == place.stat().st_dev else _copy(path, place)
    (place / "certificate.json").write_bytes(content)
    with _remembered_figures():
        result = verify(place)
    sentence = _tell_in_both_ways(result)
    if result.verdict != "verified":
        raise CheckError(sentence or "a refusal without a sentence")
    false = false_of(_original(good), content)
    assert false is None, f"a false verdict: {false}"


@contextmanager
def _remembered_figures() -> Iterator[None]:
    """Accountants are asked once about the same events: most forgeries leave them as they are."""
    with patch.object(figures, "epsilon", _figure), patch.object(accounting, "epsilon", _figure):
        yield


def _figure(events: Sequence[Event], delta: float, accountant: str = "pld") -> float:
    return _remembered(tuple(events), delta, accountant)


@lru_cache(maxsize=10_000)
def _remembered(events: tuple[Event, ...], delta: float, accountant: str) -> float:
    return _ACCOUNTANTS(events, delta, accountant)


_ACCOUNTANTS = figures.epsilon


def _copy(path: Path, place: Path) -> None:
    (place / path.name).write_bytes(path.read_bytes())


def _tell_in_both_ways(result: Verification) -> str | None:
    """What the command says, which must not depend on how; None where it succeeds."""
    json.dumps(result.as_dict(), allow_nan=False)
    said: list[str | None] = []
    with redirect_stdout(StringIO()):
        tell(result)
        for quiet in (False, True):
            try:
                conclude(Path("release"), result, quiet=quiet)
                said.append(None)
            except CheckError as error:
                said.append(str(error))
    assert said[0] == said[1], f"two answers: {said}"
    assert (said[0] is None) == (result.as_dict()["verdict"] == "verified") == result.as_dict()["passed"]
    return said[0]


def good_releases() -> list[Path]:
    """Releases that are verified: of records, with a claim that depends on the data, annotated, of a federation."""
    earlier = Path(__file__).parents[2] / "tests" / "fixtures"
    names = ("dpgan", "gs-wgan", "bdp-gan-published", "annotated", "gs-wgan-federated")
    return [seeds.release_folder(), *(folder / "releases" / name for folder in _folders(earlier) for name in names)]


def _folders(place: Path) -> list[Path]:
    return [folder for folder in sorted(place.iterdir()) if folder.is_dir()]


def certificates() -> list[bytes]:
    """Their certificates."""
    return [(folder / "certificate.json").read_bytes() for folder in good_releases()]


def _good_release(content: bytes) -> Path:
    """The release that a certificate was edited from: that whose weights it names, if it still does."""
    by_weights = {_original(folder)["generator_sha256"].encode(): folder for folder in good_releases()}
    return next((folder for digest, folder in by_weights.items() if digest in content), seeds.release_folder())


@cache
def _original(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "certificate.json").read_text())
    return found


def false_of(original: dict[str, Any], content: bytes) -> str | None:
    """Why the word *verified* is false of an edited certificate, or None where it promises no more than the good one.

    Words that only the trainer can vouch for (dates, versions, numbers of runs, remarks, purposes, audits) are not
    compared: ``verify`` calls them stated.
    """
    first, last = (json.loads(content, object_pairs_hook=hook) for hook in (_first_wins, dict))
    if repr(first) != repr(last):
        return "two readers see two certificates"
    if "not_private" in last and last["not_private"] is not None:
        return "it says that it is not private"
    for key in ("method", "generator_sha256", "config_sha256", "randomness"):
        if last.get(key) != original[key]:
            return f"another {key}"
    for key in ("not_covered", "assumed_public"):
        if not set(original[key]) <= set(last.get(key, ())):
            return f"less in {key}"
    if last.get("data_dependent") and not original.get("data_dependent"):
        return "a claim that depends on the data, which nobody published"
    raised = last.get("plan_raised") is True
    return _other_events(original["events"], last["events"], raised) or _other_promises(original, last)


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs)) if len(dict(pairs)) < len(pairs) else dict(pairs)


def _other_events(before: list[dict[str, Any]], after: list[dict[str, Any]], raised: bool) -> str | None:
    told = {"planned", "executed", "purpose"}
    usual = {"mechanism": "gaussian", "unit": "record", "sampling": {"kind": "none"}}

    def known(event: dict[str, Any]) -> tuple[str, int]:
        plain = {**usual, **{key: value for key, value in event.items() if key not in told and value is not None}}
        if plain["sampling"].get("kind") == "routed":
            plain["sampling"] = {"rows": 1} | plain["sampling"]
        count = plain.pop("count")
        return json.dumps({key: _number(value) for key, value in plain.items()}, sort_keys=True), count

    pairs = list(zip(sorted(map(known, before)), sorted(map(known, after)), strict=False))
    if len(before) != len(after) or any(old[0] != new[0] for old, new in pairs):
        return "other events"
    if any(type(new[1]) is not int or new[1] < old[1] or (new[1] > old[1] and not raised) for old, new in pairs):
        return "other numbers of events"
    return None


def _number(value: Any) -> Any:
    return float(value) if type(value) in (int, float) else value


def _other_promises(original: dict[str, Any], edited: dict[str, Any]) -> str | None:
    whom = {"viewer": "public", "unit": "record", "adjacency": "add-remove", "coalition": None, "limits": None}

    def viewer(guarantee: dict[str, Any]) -> str:
        return json.dumps({key: guarantee.get(key, usual) for key, usual in whom.items()}, sort_keys=True)

    before = {viewer(guarantee): guarantee for guarantee in original["guarantees"]}
    after = [viewer(guarantee) for guarantee in edited["guarantees"]]
    if set(after) != set(before) or after[0] != next(iter(before)):
        return "other viewers"
    units = _units(original)
    for guarantee, name in zip(edited["guarantees"], after, strict=True):
        old = before[name]
        if type(guarantee["epsilon"]) not in (int, float) or type(guarantee["delta"]) not in (int, float):
            return "numbers that are none"
        if guarantee["delta"] * units > 1:
            return "a delta above one over the units"
        if guarantee["delta"] <= old["delta"] and guarantee["epsilon"] < 0.99 * old["epsilon"]:
            return "a smaller epsilon at no larger delta"
        if guarantee["delta"] > old["delta"] and guarantee["epsilon"] < 0.99 * _cost(original, old, guarantee["delta"]):
            return "an epsilon below what the larger delta buys"
    return None


def _cost(original: dict[str, Any], guarantee: dict[str, Any], delta: float) -> float:
    """What the events of the good release cost a viewer at another delta, at least."""
    events = tuple(Event.model_validate(event) for event in original["events"])
    seen = viewers.events_seen(events, Guarantee.model_validate(guarantee))
    return min(accounting.epsilon(seen, delta, accountant) for accountant in ("pld", "fourier"))


def _units(original: dict[str, Any]) -> int:
    unit = original["guarantees"][0].get("unit", "record")
    facts = dict(item.split(": ", 1) for item in original["assumed_public"] if ": " in item)
    return int(facts[f"nominal_{unit}s"])
