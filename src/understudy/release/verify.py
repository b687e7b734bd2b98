"""``verify``: recompute every claim of a release and compare its files with what its certificate says.

Nothing here trusts the release: a malformed, altered or hostile folder gives failed checks, never an exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from understudy.errors import InputError, UnderstudyError
from understudy.files import file_sha256
from understudy.privacy import accounting, viewers
from understudy.privacy.certificate import Certificate, Guarantee, read_certificate
from understudy.privacy.events import Event
from understudy.privacy.meaning import event_in_words
from understudy.release import folders
from understudy.release.checks import check_audits, check_data_dependent, compare_plan, declared_domains

_BY_CHECK = {
    "plan": "the events are those that the released config plans",
    "config hash": "the config is the one that the certificate names",
}
PROVES = (
    "every claim follows from the events in the certificate, by two independently written accountants",
    _BY_CHECK["plan"],
    "the weights are the ones that the certificate names",
    _BY_CHECK["config hash"],
    "the folder holds the allowed files and nothing else",
)
DOES_NOT_PROVE = (
    "that the events are all that happened to the data: for that you trust whoever trained the generator",
    "that the declared public facts are public, and that no further runs touched the data",
    "anything about side channels, floating-point attacks on the noise, or evaluation figures",
    "a data-dependent figure such as epsilon_mu, which cannot be recomputed without the data",
    "anything about README.md and samples.png, which illustrate the release and are not hashed",
)

_MAXIMUM_EVENTS = 1000
_REFINED_EPSILON, _REFINED_NOISE = 50.0, 0.3
Value = TypeVar("Value")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its name, whether it holds, and what was found.

    Where the release gives nothing to compare with, nothing was ``compared``: the check stands and proves nothing.
    """

    name: str
    passed: bool
    detail: str
    compared: bool = True


@dataclass(frozen=True)
class Verification:
    """The outcome of ``verify``.

    ``epsilon`` is the headline figure recomputed from the events (the larger of the two accountants), ``claimed`` what
    the certificate says; both are None where the certificate cannot be read.
    """

    epsilon: float | None
    delta: float | None
    claimed: float | None
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    @property
    def proves(self) -> tuple[str, ...]:
        """What a verification that passed proves of this release."""
        return tuple(item for item in PROVES if item not in self._not_compared)

    @property
    def does_not_prove(self) -> tuple[str, ...]:
        """What it does not prove, here and in general."""
        return (*(f"that {item}" for item in self._not_compared), *DOES_NOT_PROVE)

    @property
    def _not_compared(self) -> list[str]:
        return [_BY_CHECK[check.name] for check in self.checks if not check.compared]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json`` and the report."""
        return {
            "passed": self.passed,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "claimed_epsilon": self.claimed,
            "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in self.checks],
            "proves": list(self.proves),
            "does_not_prove": list(self.does_not_prove),
        }


def verify(folder: Path | str) -> Verification:
    """Check a release folder (or the release of a run folder); only a path that is not there is an error."""
    place = folders.find_release(folder)
    listed, readable = _attempt("files", lambda: _check_files(place))
    files = listed or readable
    if any((place / name).exists() and not _is_plain(place / name) for name in folders.ALLOWED_FILES):
        return Verification(None, None, None, (files,))  # a link, pipe or device is never opened
    certificate, schema = _attempt("certificate", lambda: read_certificate(place / folders.CERTIFICATE))
    checks = [files, schema]
    if certificate is None:
        return Verification(None, None, None, tuple(checks))
    checks += [_check_weights_hash(place, certificate), _check_config_hash(place, certificate)]
    checks += [_check_loadable(place, certificate), _check_randomness(certificate)]
    if certificate.not_private is not None:
        return Verification(None, None, None, (*checks, Check("guarantee", False, f"none: {certificate.not_private}")))
    checks.append(_check_plan(place, certificate))
    checks += [Check(*found) for found in check_data_dependent(certificate)]
    checks += [Check(*found) for found in check_audits(certificate)]
    computed, recomputed = _recompute(certificate)
    headline = certificate.headline
    return Verification(computed, headline.delta, headline.epsilon, (*checks, *recomputed))


def _attempt(name: str, action: Callable[[], Value], detail: str = "valid (schema 1)") -> tuple[Value | None, Check]:
    """The value of an action and a check that it worked; hostile input may fail in any way, so all are caught."""
    try:
        return action(), Check(name, True, detail)
    except UnderstudyError as error:
        return None, Check(name, False, str(error))
    except Exception as error:
        return None, Check(name, False, f"{type(error).__name__}: {error}")


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _check_files(place: Path) -> Check:
    problems = []
    for entry in sorted(place.iterdir()):
        if entry.name not in folders.ALLOWED_FILES:
            problems.append(f"{entry.name!r} is not allowed")
        elif not _is_plain(entry):
            problems.append(f"{entry.name!r} is not a plain file")
    problems += [f"{name!r} is missing" for name in folders.ALLOWED_FILES if not (place / name).exists()]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        return Check("files", False, "; ".join(problems[:3]) + more)
    return Check("files", True, f"the {len(folders.ALLOWED_FILES)} allowed files and nothing else")


def _check_hash(name: str, path: Path, expected: str) -> Check:
    found, check = _attempt(name, lambda: file_sha256(path))
    if found is None or found == expected:
        return Check(name, check.passed, f"SHA-256 {expected[:12]}... matches" if check.passed else check.detail)
    return Check(name, False, f"SHA-256 is {found[:12]}..., but the certificate says {expected[:12]}...")


def _check_weights_hash(place: Path, certificate: Certificate) -> Check:
    return _check_hash("weights hash", place / folders.WEIGHTS, certificate.generator_sha256)


def _check_config_hash(place: Path, certificate: Certificate) -> Check:
    if certificate.config_sha256 is None:
        return Check("config hash", True, "the certificate records none, so the config is not tied to it", False)
    return _check_hash("config hash", place / folders.CONFIG, certificate.config_sha256)


def _check_loadable(place: Path, certificate: Certificate) -> Check:
    return _attempt("generator", lambda: _load_and_compare(place, certificate), "weights and config fit together")[1]


def _load_and_compare(place: Path, certificate: Certificate) -> None:
    from understudy.release.contents import generator_from_bytes, read_config, read_weights

    config = read_config(place / folders.CONFIG)
    if config.method != certificate.method:
        raise InputError(f"the config says method {config.method!r}, but the certificate {certificate.method!r}")
    declared = [item for domain in declared_domains(config) for item in domain.assumed_public()]
    unstated = [item for item in declared if item not in certificate.assumed_public]
    if unstated:
        raise InputError(f"the config declares {unstated[0]!r}, but the certificate does not list it as assumed public")
    generator_from_bytes(read_weights(place / folders.WEIGHTS), config.generator)


def _check_randomness(certificate: Certificate) -> Check:
    from understudy.privacy.randomness.streams import OS_ENTROPY

    if certificate.randomness == OS_ENTROPY:
        return Check("randomness", True, "drawn from the operating system")
    return Check("randomness", False, f"{certificate.randomness!r}: noise that can be repeated can be removed")


def _check_plan(place: Path, certificate: Certificate) -> Check:
    found, check = _attempt("plan", lambda: compare_plan(place, certificate))
    if found is None:
        return check
    return Check(check.name, True, found[0], compared=found[1])


def _recompute(certificate: Certificate) -> tuple[float | None, list[Check]]:
    """The headline figure and the checks of every guarantee."""
    if len(certificate.events) > _MAXIMUM_EVENTS:
        return None, [
            Check("events", False, f"{len(certificate.events)} events; at most {_MAXIMUM_EVENTS} are accounted")
        ]
    headline: float | None = None
    checks: list[Check] = []
    for number, guarantee in enumerate(certificate.guarantees, start=1):
        name = f"guarantee {number}"
        checks += [_check_delta(name, guarantee), _check_supported(name, guarantee, certificate)]
        if not (checks[-1].passed and checks[-2].passed):
            continue
        if guarantee.limits is not None:
            checks.append(_check_limits(name, guarantee, certificate))
        figures, accounted = _account(name, guarantee, certificate)
        checks += accounted
        if number == 1:
            headline = max(figures) if figures else None
    return headline, checks


def _check_delta(name: str, guarantee: Guarantee) -> Check:
    """The parts of delta may not add up to more than delta, and something must be left for the accountants."""
    name = f"{name}: delta"
    parts = guarantee.delta_parts
    if parts is None:
        return Check(name, True, f"delta {guarantee.delta:g} is spent on the events alone")
    total, left = math.fsum(parts.values()), guarantee.accounted_delta
    shown = " + ".join(f"{value:g} ({part})" for part, value in parts.items())
    if total > guarantee.delta * (1 + 1e-9) or left <= 0:
        return Check(name, False, f"the parts {shown} exceed delta {guarantee.delta:g}")
    if "accountant" in parts and not math.isclose(total, guarantee.delta, rel_tol=1e-9):
        return Check(name, False, f"the parts {shown} do not add up to delta {guarantee.delta:g}")
    return Check(name, True, f"{shown} within delta {guarantee.delta:g}")


def _check_supported(name: str, guarantee: Guarantee, certificate: Certificate) -> Check:
    """Refuse a claim that the accountants do not prove: only add-remove against the public uses secret sampling as is.

    A server that asks, and clients that collude, see other events (``privacy.viewers``). A neighbour in which a unit is
    replaced is covered where every event is an unsampled Gaussian whose sensitivity is that of a replaced answer.
    """
    name = f"{name}: kind"
    words = f"{guarantee.unit}, {guarantee.adjacency}, against {guarantee.viewer}"
    if any(event.unit != guarantee.unit for event in certificate.events):
        return Check(name, False, f"{words}: the events protect another unit")
    if guarantee.unit != "client" and (guarantee.viewer, guarantee.adjacency) != ("public", "add-remove"):
        return Check(name, False, f"{words}: whoever trains on records sees them; only clients answer for themselves")
    if guarantee.viewer != "public" or guarantee.adjacency == "add-remove":
        try:
            seen = viewers.events_seen(certificate.events, guarantee)
        except InputError as error:
            return Check(name, False, f"{words}: {error}")
        return Check(name, True, words if seen == certificate.events else f"{words}: {event_in_words(seen[0])}")
    if all(event.sampling.kind == "none" and event.sensitivity == "2C" for event in certificate.events):
        return Check(name, True, f"{words}: no sampling, sensitivity 2C")
    return Check(name, False, f"{words}: no accountant proves this claim from these events")


def _check_limits(name: str, guarantee: Guarantee, certificate: Certificate) -> Check:
    """Limits must be those of the routed events, and delta must pay for the chance that one of them is reached.

    A server learns nothing from an answer that a limit cuts off, since every client refuses past it: no part is needed.
    """
    name, limits = f"{name}: limits", guarantee.limits
    assert limits is not None, "asked only where there are any"
    for event in certificate.events:
        if event.noise_parts == limits.clients:
            continue  # every client's part of a sum: no limit cuts it off
        clients, routed = getattr(event.sampling, "subsets", limits.clients), limits.rounds * limits.queries
        if event.sampling.kind != "routed" or clients != limits.clients or routed < event.count:
            return Check(name, False, "they are not those of the routed events")
    if guarantee.viewer == "server":
        return Check(name, True, f"at most {limits.answers:,} answers of any client, which refuses beyond")
    needed = viewers.limits_delta(limits, guarantee.epsilon)
    kept = (guarantee.delta_parts or {}).get(viewers.LIMITS_PART, 0.0)
    words = f"cutting off an answer costs {needed:g} of delta"
    return Check(name, needed <= kept * (1 + 1e-6), f"{words}, {kept:g} is set aside")


def _account(name: str, guarantee: Guarantee, certificate: Certificate) -> tuple[list[float], list[Check]]:
    """Both accountants against the claim, and RDP beside them for the reader."""
    figures, checks, delta = [], [], guarantee.accounted_delta
    events = viewers.events_seen(certificate.events, guarantee)
    for accountant, compute in (("pld", _pld), ("fourier", _fourier)):
        action = partial(compute, events, delta, guarantee.epsilon)
        value, check = _attempt(f"{name}: {accountant}", action)
        if value is not None:
            figures.append(value)
            relation = "at or below" if value <= guarantee.epsilon else "above"
            detail = f"epsilon {value:.6f} {relation} the claimed {guarantee.epsilon:g} at delta {delta:g}"
            check = Check(check.name, value <= guarantee.epsilon, detail)
        checks.append(check)
    return figures, [*checks, _sanity(f"{name}: renyi", events, delta, figures)]


def _pld(events: Sequence[Event], delta: float, claimed: float) -> float:
    """The first accountant; a claim that is missed by a last digit is tried once more on a finer grid.

    A distribution on any grid gives an upper bound, so a claim that one of them confirms is true. The finer grid is
    taken only where its length is sure to be moderate.
    """
    figure = accounting.epsilon(events, delta, accountant="pld")
    small = claimed <= _REFINED_EPSILON and all(event.noise_multiplier >= _REFINED_NOISE for event in events)
    if small and claimed < figure <= claimed * 1.001:
        from understudy.privacy.accounting import pld

        figure = min(figure, pld.epsilon(events, delta, grid=pld.USUAL_GRID / 2))
    return figure


def _fourier(events: Sequence[Event], delta: float, claimed: float) -> float:
    """The second accountant; it shares no code with the first."""
    return accounting.epsilon(events, delta, accountant="fourier")


def _sanity(name: str, events: Sequence[Event], delta: float, figures: Sequence[float]) -> Check:
    """Renyi's figure, which should not be below the others; shown, and not a condition."""
    renyi, check = _attempt(name, lambda: accounting.epsilon(events, delta, accountant="renyi"))
    if renyi is None:
        text = f"not available ({check.detail})"
    elif figures and renyi < min(figures):
        text = f"epsilon {renyi:.4f}, unexpectedly below the accountants above"
    else:
        text = f"epsilon {renyi:.4f}, not below the accountants above, as it should be"
    return Check(name, True, f"{text} (for information)")
