"""Events: plain data, charged in full, and an unknown kind is an error, never a guess."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

from ..helpers.certificates import AS_DESIGNED

READ = TypeAdapter(tuple[Event, ...])  # as a certificate reads its events

SAMPLINGS = st.one_of(
    st.just(NoSampling()),
    st.floats(1e-9, 1).map(lambda rate: PoissonSampling(rate=rate)),
    st.integers(1, 10**6).map(lambda subsets: RoutedSampling(subsets=subsets)),
    st.integers(1, 10**6).map(lambda subsets: RevealedRouting(subsets=subsets, rows=4)),
)
EVENTS = st.builds(
    lambda noise, sampling, draws, purpose: Event(
        noise_multiplier=noise,
        sensitivity="2C",
        sampling=sampling,
        count=draws * getattr(sampling, "rows", 1),
        purpose=purpose,
    ),
    st.floats(1e-3, 1e6),
    SAMPLINGS,
    st.integers(1, 10**9),
    st.none() | st.text(max_size=20),
)


@given(event=EVENTS)
def test_an_event_survives_json(event):
    assert READ.validate_python(json.loads(json.dumps([event.model_dump(exclude_none=True)]))) == (event,)


def test_the_form_that_a_certificate_states_is_read_and_optional_fields_may_be_left_out():
    (stated,) = READ.validate_python(AS_DESIGNED["events"])
    assert stated.sampling == RoutedSampling(subsets=1000)
    assert (stated.count, stated.executed, stated.planned) == (640000, 640000, None)
    (short,) = READ.validate_python([{"noise_multiplier": 1.0, "count": 1}])
    assert (short.mechanism, short.sampling, short.sensitivity, short.unit) == (
        "gaussian",
        NoSampling(),
        None,
        "record",
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mechanism": "laplace"}, "mechanism"),
        ({"mechanism": "gaussian "}, "mechanism"),
        ({"sampling": {"kind": "shuffled"}}, "sampling"),
        ({"sampling": {"kind": "poisson"}}, "rate"),
        ({"sampling": {"kind": "poisson", "rate": 0}}, "rate"),
        ({"sampling": {"kind": "poisson", "rate": 1.5}}, "rate"),
        ({"sampling": {"kind": "routed", "subsets": 0}}, "subsets"),
        ({"sampling": {"kind": "routed", "subsets": 10, "rate": 0.1}}, "rate"),
        ({"sampling": {"kind": "none", "rate": 0.1}}, "rate"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
        ({"noise_multiplier": -1}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier"),
        ({"noise_multiplier": None}, "noise_multiplier"),
        ({"sensitivity": "3C"}, "sensitivity"),
        ({"sensitivity": "C", "sampling": {"kind": "routed", "subsets": 10}}, "2C"),
        ({"sampling": {"kind": "routed", "subsets": 10}}, "sensitivity not stated"),
        ({"sampling": {"kind": "revealed", "subsets": 10, "rows": 1}}, "sensitivity not stated"),
        ({"unit": "household"}, "unit"),
        ({"count": 0}, "count"),
        ({"count": -5}, "count"),
        ({"count": 2.5}, "count"),
        ({"amplified_by": "hope"}, "amplified_by"),
    ],
)
def test_anything_unknown_or_out_of_range_is_refused_by_name(change, named):
    with pytest.raises(ValidationError, match=rf"^1 validation error.*\n1\.?.*(\n.*)*{named}"):
        READ.validate_python([{"noise_multiplier": 1.0, "count": 1}, {"noise_multiplier": 1.0, "count": 1, **change}])


@pytest.mark.parametrize("raw", [None, 3, "gaussian", b"gaussian", {"noise_multiplier": 1.0, "count": 1}])
def test_what_is_no_list_of_events_is_refused(raw):
    with pytest.raises(ValidationError, match="Input should be a valid tuple"):
        READ.validate_python(raw)


@pytest.mark.parametrize("item", [None, 3, "gaussian", []])
def test_what_is_no_event_is_refused(item):
    with pytest.raises(ValidationError, match=r"\n0\n  Input should be a valid dictionary or instance of Event"):
        READ.validate_python([item])


@pytest.mark.parametrize(("planned", "executed"), [(10, 4), (4, 10), (10, 10), (10, 0)])
def test_the_larger_of_planned_and_executed_is_charged(planned, executed):
    event = Event(noise_multiplier=1.0, count=1).charged(planned=planned, executed=executed)
    assert (event.count, event.planned, event.executed) == (10, planned, executed)


@pytest.mark.parametrize("fields", [{"planned": 11}, {"executed": 11}, {"planned": 3, "executed": 11}])
def test_an_event_that_charges_less_than_was_planned_or_executed_is_refused(fields):
    with pytest.raises(ValidationError, match="count 10 is below what was planned or executed"):
        Event(noise_multiplier=1.0, count=10, **fields)


def test_a_draw_that_is_revealed_is_charged_with_all_its_rows():
    sampling = RevealedRouting(subsets=10, rows=4)
    assert Event(noise_multiplier=1.0, sensitivity="2C", sampling=sampling, count=8).count == 8
    with pytest.raises(ValidationError, match="count 10 is not a multiple of the 4 rows of one draw"):
        Event(noise_multiplier=1.0, sensitivity="2C", sampling=sampling, count=10)


def test_events_cannot_be_changed():
    event = Event(noise_multiplier=1.0, count=1)
    with pytest.raises(ValidationError, match="frozen"):
        event.count = 0
