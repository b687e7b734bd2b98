"""``verify``: recompute every claim of a release and compare its files with what its certificate says.

Nothing here trusts the release: a malformed, altered or hostile folder gives failed checks, never an exception. The
verdict is one of three words. *verified*: every guarantee follows from the events by two accountants, the events are
those that the released config plans, everybody whom the method answers to is named, and delta is small enough for the
number of units. *consistent*: nothing contradicts the claim, but something of this is missing or tied to nothing.
*refused*: something contradicts it. What only the trainer can know is listed as stated, never as found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from understudy.errors import InputError
from understudy.files import file_sha256, is_laid_out
from understudy.privacy import accounting, viewers
from understudy.privacy.certificate import NOT_COVERED, Certificate, Guarantee, read_certificate
from understudy.privacy.events import Event
from understudy.privacy.meaning import event_in_words
from understudy.privacy.plan import RECORDS_ONLY
from understudy.release import checks as looks
from understudy.release import folders, signing
from understudy.release.checks import Check, Missing, Promise, attempt, outcome

if TYPE_CHECKING:
    from understudy.release.contents import ReleaseConfig

Verdict = Literal["verified", "consistent", "refused"]

_BY_CHECK = {
    "plan": "the events, the generator and a classifier beside it are those that the released config plans",
    "config hash": "the config is the one that the certificate names",
    "viewers": "a guarantee is stated against everybody whom the method answers to",
}
PROVES = (
    "every claim follows from the events in the certificate, by two independently written accountants",
    _BY_CHECK["plan"],
    _BY_CHECK["viewers"],
    "the weights are the ones that the certificate names",
    _BY_CHECK["config hash"],
    "the folder holds the allowed files and nothing else",
)
DOES_NOT_PROVE = (
    "that the events are all that happened to the data: for that you trust whoever trained the generator",
    "that the declared public facts are public, and that no further runs touched the data",
    "anything about side channels, floating-point attacks on the noise, or evaluation figures",
    "a data-dependent figure such as epsilon_mu, which cannot be recomputed without the data",
    "how common each class is, which a noisy embedding may have told, when a guide of a diffusion model was copied, or "
    "how the word of a teacher is shifted and weighed, as was found on what the generator draws",
    "anything about README.md and samples.png, which illustrate the release and are not hashed",
)

_MOST_GUARANTEES = 10  # each takes seconds; releases have three at most
_REFINED_EPSILON, _REFINED_NOISE = 50.0, 0.3


@dataclass(frozen=True)
class Verification:
    """The outcome of ``verify``.

    ``epsilon`` is the headline figure recomputed from the events (the larger of the two accountants), ``claimed`` what
    the certificate says; both are None where the certificate cannot be read. ``remarks`` are what a reader must know of
    a claim that holds, ``stated`` what the trainer says and nobody can check, ``signature`` who vouches for it.
    """

    epsilon: float | None
    delta: float | None
    claimed: float | None
    checks: tuple[Check, ...]
    remarks: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    signature: signing.Signature = signing.NONE

    @property
    def verdict(self) -> Verdict:
        """*verified*, *consistent* or *refused*; anything short of a recomputed epsilon is refused."""
        failed = [check for check in self.checks if not check.passed]
        if self.epsilon is None or any(not check.missing for check in failed):
            return "refused"
        return "consistent" if failed else "verified"

    @property
    def passed(self) -> bool:
        """Whether the release is *verified*."""
        return self.verdict == "verified"

    @property
    def reason(self) -> Check | None:
        """The check to name first where the release is not verified: a contradiction before what is missing."""
        failed = [check for check in self.checks if not check.passed]
        return min(failed, key=lambda check: check.missing, default=None)

    @property
    def proves(self) -> tuple[str, ...]:
        """What a verification proves of this release: nothing where it is refused."""
        if self.verdict == "refused":
            return ()
        return tuple(item for item in PROVES if item not in self._not_compared)

    @property
    def does_not_prove(self) -> tuple[str, ...]:
        """What it does not prove, here and in general."""
        return (*(f"that {item}" for item in self._not_compared), *DOES_NOT_PROVE)

    @property
    def _not_compared(self) -> list[str]:
        holds = {check.name for check in self.checks if check.passed}
        return [item for name, item in _BY_CHECK.items() if name not in holds]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json`` and the report."""
        return {
            "verdict": self.verdict,
            "passed": self.passed,
            "epsilon": self.epsilon if self.epsilon is not None and math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "claimed_epsilon": self.claimed,
            "signature": self.signature.as_dict(),
            "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in self.checks],
            "missing": [check.name for check in self.checks if check.missing],
            "remarks": list(self.remarks),
            "stated_by_the_trainer": list(self.stated),
            "proves": list(self.proves),
            "does_not_prove": list(self.does_not_prove),
        }


def verify(folder: Path | str, keys: Path | str | None = None) -> Verification:
    """Check a release folder (or the release of a run folder); only a path that is not there is an error.

    With ``keys``, a public key or a folder of them, one of these must have signed every file. A signature adds nothing
    to the arithmetic and says who vouches for what is stated; a wrong one, or a missing one with ``keys``, is refused.
    """
    trusted = None if keys is None else signing.trusted_keys(keys)
    place = folders.find_release(folder)
    found, signature = _verify(place), signing.check(place, trusted)
    checks = found.checks
    if signature.state in (signing.VALID, signing.REFUSED):
        checks = (*checks, Check("signature", not signature.refused, signature.detail))
    return replace(found, checks=checks, signature=signature)


def _verify(place: Path) -> Verification:
    """Everything but the signature."""
    files = outcome("files", lambda: _check_files(place))
    if not files.passed and _holds_other_than_files(place):
        return Verification(None, None, None, (files,))  # a link, pipe or device is never opened
    certificate, schema = attempt("certificate", lambda: read_certificate(place / folders.CERTIFICATE))
    if certificate is None:
        return Verification(None, None, None, (files, schema))
    schema = replace(schema, detail=f"schema {certificate.schema_version}")
    config, bound = _check_config(place, certificate)
    checks = [files, schema, _check_hash("weights hash", place / folders.WEIGHTS, certificate.generator_sha256), *bound]
    checks.append(outcome("randomness", lambda: _check_randomness(certificate)))
    stated = tuple(_stated(certificate))
    if certificate.not_private is not None:
        checks.append(Check("guarantee", False, f"none: {certificate.not_private}"))
        return Verification(None, None, None, tuple(checks), stated=stated)
    checks += _check_promise(config, certificate)
    checks += [*looks.check_audits(certificate), *looks.check_account(certificate, config)]
    epsilon, recomputed, remarks = _recompute(config, certificate)
    headline = certificate.headline
    return Verification(epsilon, headline.delta, headline.epsilon, (*checks, *recomputed), tuple(remarks), stated)


def _stated(certificate: Certificate) -> Iterator[str]:
    """What the certificate says and only its trainer can know."""
    from understudy.privacy.randomness.streams import OS_ENTROPY

    drawn = "drawn from the operating system" if certificate.randomness == OS_ENTROPY else certificate.randomness
    yield f"randomness: {drawn}"
    yield f"runs on this data: {certificate.runs_on_this_data}"
    if certificate.account is not None:
        yield certificate.account.in_words()
    yield "the events took place as they are listed, and nothing else touched the data"
    if any(event.unit == "person" for event in certificate.events):
        yield "people: each went by one id in the data, with all of their images"
    if certificate.stopped_because is not None:
        raised = ", after its plan was raised" if certificate.plan_raised else ""
        yield f"the run: {certificate.stopped_because}{raised}"
    yield f"created: {certificate.created}"
    yield from (f"remark: {remark}" for remark in certificate.remarks)
    if certificate.audits:
        yield f"audits: {len(certificate.audits)}, as they are recorded"


# Files


def _holds_other_than_files(place: Path) -> bool:
    """Whether an allowed name stands for something that must not be opened, as far as can be seen."""
    try:
        return any((place / name).exists() and not _is_plain(place / name) for name in folders.ALLOWED_FILES)
    except OSError:
        return True


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _check_files(place: Path) -> str:
    problems = []
    for entry in sorted(place.iterdir()):
        if entry.name not in (*folders.ALLOWED_FILES, folders.SIGNATURE):
            problems.append(f"{entry.name!r} is not allowed")
        elif not _is_plain(entry):
            problems.append(f"{entry.name!r} is not a plain file")
    problems += [f"{name!r} is missing" for name in folders.ALLOWED_FILES if not (place / name).exists()]
    if not problems:
        told = [name for name in (folders.CERTIFICATE, folders.CONFIG) if not is_laid_out(place / name)]
        problems += [f"{name!r} is not laid out as a release writes it; fetch it again" for name in told]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError("; ".join(problems[:3]) + more)
    signed = ", a signature" if (place / folders.SIGNATURE).exists() else ""
    return f"the {len(folders.ALLOWED_FILES)} allowed files{signed} and nothing else"


def _check_hash(name: str, path: Path, expected: str | None) -> Check:
    def compare() -> str:
        if expected is None:
            raise Missing("the certificate records none, so the config is not tied to it")
        found = file_sha256(path, folders.LARGEST_BYTES)
        if found != expected:
            raise InputError(f"SHA-256 is {found[:12]}..., but the certificate says {expected[:12]}...")
        return f"SHA-256 {expected[:12]}... matches"

    return outcome(name, compare)


def _check_config(place: Path, certificate: Certificate) -> tuple[ReleaseConfig | None, list[Check]]:
    """The config, where it can be read, and the checks of what it says against certificate and weights."""
    from understudy.release.contents import generator_from_bytes, read_config, read_weights

    tied = _check_hash("config hash", place / folders.CONFIG, certificate.config_sha256)
    config, readable = attempt("config", lambda: read_config(place / folders.CONFIG), "schema 1")
    if config is None:
        return None, [tied, readable]

    def load() -> str:
        generator_from_bytes(read_weights(place / folders.WEIGHTS), config.generator)
        return "weights and config fit together"

    facts = outcome("facts", lambda: looks.compare_facts(config, certificate))
    return config, [tied, readable, outcome("generator", load), facts]


def _check_randomness(certificate: Certificate) -> str:
    from understudy.privacy.randomness.streams import OS_ENTROPY

    if certificate.randomness != OS_ENTROPY:
        raise InputError(f"{certificate.randomness!r}: noise that can be repeated can be removed")
    return "no seed is stated"


# What the method promises


def _check_promise(config: ReleaseConfig | None, certificate: Certificate) -> list[Check]:
    """The plan replayed, and what the method must say of its guarantees compared with what is said."""

    def replay() -> Promise:
        if config is None:
            raise InputError("the config cannot be read")
        return looks.replay(config, certificate)

    promise, planned = attempt("plan", replay)
    compared = [planned]
    if promise is not None:
        compared = [
            outcome("plan", lambda: looks.compare_events(promise, certificate)),
            outcome("viewers", lambda: looks.compare_viewers(promise, certificate)),
        ]
    reservations = NOT_COVERED if promise is None else promise.not_covered
    compared.append(outcome("not covered", lambda: looks.check_not_covered(reservations, certificate)))
    return [*compared, *looks.check_data_dependent(promise, certificate)]


# Guarantees


def _recompute(config: ReleaseConfig | None, certificate: Certificate) -> tuple[float | None, list[Check], list[str]]:
    """The headline figure, the checks of every guarantee, and remarks on them."""
    for name, found, most in (
        ("events", certificate.events, looks.MOST_EVENTS),
        ("guarantees", certificate.guarantees, _MOST_GUARANTEES),
    ):
        if len(found) > most:
            return None, [Check(name, False, f"{len(found)} {name}; at most {most} are accounted")], []
    headline: float | None = None
    checks: list[Check] = []
    remarks: list[str] = []
    for number, guarantee in enumerate(certificate.guarantees, start=1):
        name = f"guarantee {number}"
        checks += [_check_size(name, guarantee, config, remarks), outcome(f"{name}: delta", partial(_parts, guarantee))]
        checks.append(outcome(f"{name}: kind", partial(_supported, guarantee, certificate)))
        if not (checks[-1].passed and checks[-2].passed):
            continue
        if guarantee.limits is not None:
            checks.append(outcome(f"{name}: limits", partial(_limits, guarantee, certificate)))
        figures, accounted = _account(name, guarantee, certificate)
        checks += accounted
        if number == 1:
            headline = max(figures) if figures else None
    return headline, checks, remarks


def _check_size(name: str, guarantee: Guarantee, config: ReleaseConfig | None, remarks: list[str]) -> Check:
    """Whether delta is small enough for the number of units; a remark where it is large all the same."""

    def compare() -> str:
        if config is None:
            raise Missing("no config declares how many units there are")
        units = looks.units_protected(guarantee, config)
        found = looks.check_delta_size(guarantee, units)
        remark = looks.delta_remark(guarantee, units)
        remarks.extend([remark] if remark else [])
        if guarantee.unit == "record" and any(each.nominal_clients for each in looks.declared_domains(config)):
            remarks.append(RECORDS_ONLY)
        return found

    return outcome(f"{name}: units", compare)


def _parts(guarantee: Guarantee) -> str:
    """The parts of delta may not add up to more than delta, and something must be left for the accountants."""
    parts = guarantee.delta_parts
    if parts is None:
        return f"delta {guarantee.delta:g} is spent on the events alone"
    total, left = math.fsum(parts.values()), guarantee.accounted_delta
    shown = " + ".join(f"{value:g} ({part})" for part, value in parts.items())
    if total > guarantee.delta * (1 + 1e-9) or left <= 0:
        raise InputError(f"the parts {shown} exceed delta {guarantee.delta:g}")
    if "accountant" in parts and not math.isclose(total, guarantee.delta, rel_tol=1e-9):
        raise InputError(f"the parts {shown} do not add up to delta {guarantee.delta:g}")
    return f"{shown} within delta {guarantee.delta:g}"


def _supported(guarantee: Guarantee, certificate: Certificate) -> str:
    """Refuse a claim that the accountants do not prove: only add-remove against the public uses secret sampling as is.

    A server that asks, and clients that collude, see other events (``privacy.viewers``). A neighbour in which a unit is
    replaced is covered where every event is an unsampled Gaussian whose sensitivity is that of a replaced answer.
    """
    words = f"{guarantee.unit}, {guarantee.adjacency}, against {guarantee.viewer}"
    if any(event.unit != guarantee.unit for event in certificate.events):
        raise InputError(f"{words}: the events protect another unit")
    if guarantee.unit != "client" and (guarantee.viewer, guarantee.adjacency) != ("public", "add-remove"):
        raise InputError(f"{words}: whoever trains on records sees them; only clients answer for themselves")
    if guarantee.viewer != "public" or guarantee.adjacency == "add-remove":
        try:
            seen = viewers.events_seen(certificate.events, guarantee)
        except InputError as error:
            raise InputError(f"{words}: {error}") from None
        unnamed = seen[0].model_copy(update={"purpose": None})  # a purpose is the trainer's word, and compared to none
        return words if seen == certificate.events else f"{words}: {event_in_words(unnamed)}"
    if all(event.sampling.kind == "none" and event.sensitivity == "2C" for event in certificate.events):
        return f"{words}: no sampling, sensitivity 2C"
    raise InputError(f"{words}: no accountant proves this claim from these events")


def _limits(guarantee: Guarantee, certificate: Certificate) -> str:
    """Limits must be those of the routed events, and delta must pay for the chance that one of them is reached.

    A server learns nothing from an answer that a limit cuts off, since every client refuses past it: no part is needed.
    """
    limits = guarantee.limits
    assert limits is not None, "asked only where there are any"
    for event in certificate.events:
        if event.noise_parts == limits.clients:
            continue  # every client's part of a sum: no limit cuts it off
        clients, routed = getattr(event.sampling, "subsets", limits.clients), limits.rounds * limits.queries
        if event.sampling.kind != "routed" or clients != limits.clients or routed < event.count:
            raise InputError("they are not those of the routed events")
    if guarantee.viewer == "server":
        return f"at most {limits.answers:,} answers of any client, which refuses beyond"
    needed = viewers.limits_delta(limits, guarantee.epsilon)
    kept = (guarantee.delta_parts or {}).get(viewers.LIMITS_PART, 0.0)
    words = f"cutting off an answer costs {needed:g} of delta, {kept:g} is set aside"
    if not needed <= kept * (1 + 1e-6):
        raise InputError(words)
    return words


def _account(name: str, guarantee: Guarantee, certificate: Certificate) -> tuple[list[float], list[Check]]:
    """Both accountants against the claim, and RDP beside them for the reader."""
    figures, checks, delta = [], [], guarantee.accounted_delta
    events = viewers.events_seen(certificate.events, guarantee)  # passed before, in ``_supported``
    for accountant, compute in (("pld", _pld), ("fourier", _fourier)):
        action = partial(compute, events, delta, guarantee.epsilon)
        value, check = attempt(f"{name}: {accountant}", action)
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
    renyi, check = attempt(name, lambda: accounting.epsilon(events, delta, accountant="renyi"))
    if renyi is None:
        text = f"not available ({check.detail})"
    elif figures and renyi < min(figures):
        text = f"epsilon {renyi:.4f}, unexpectedly below the accountants above"
    else:
        text = f"epsilon {renyi:.4f}, not below the accountants above, as it should be"
    return Check(name, True, f"{text} (for information)")
