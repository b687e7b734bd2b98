from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.data.arrays import from_arrays
from understudy.data.domain import SourceOptions
from understudy.data.sampling import coin_flips, sampling_rate, uniform_integers
from understudy.errors import InputError

IMAGES = np.zeros((60, 8, 8), dtype=np.uint8)


def fixed(*words: int):  # type: ignore[no-untyped-def]
    """A source of bytes that hands out the given 32-bit words in order."""
    stream = iter(words)

    def bits(count: int) -> bytes:
        return b"".join(word.to_bytes(4, "little") for word in itertools.islice(stream, count // 4))

    return bits


def test_the_rate_comes_from_declared_numbers_only() -> None:
    for true in (1, 60):
        data = from_arrays(IMAGES[:true], records=1000)
        assert sampling_rate(10, data.nominal_units("record")) == 0.01
    options = SourceOptions(nominal_clients=50)
    data = from_arrays(IMAGES, client_ids=np.arange(60) % 7, records=1000, options=options)
    assert sampling_rate(10, data.nominal_units("client")) == 0.2


@pytest.mark.parametrize("batch", [0, -1, 61, float("nan"), float("inf")])
def test_bad_batches(batch: float) -> None:
    with pytest.raises(InputError, match="out of 60 nominal units; pass a positive size of at most 60"):
        sampling_rate(batch, 60)


@given(st.integers(1, 2**32), st.lists(st.integers(0, 2**32 - 1), min_size=60, max_size=60))
@settings(max_examples=60, deadline=None)
def test_integers_are_rejected_and_never_folded(bound: int, words: list[int]) -> None:
    limit = 2**32 // bound * bound
    expected = [word % bound for word in words if word < limit]
    drawn = [int(uniform_integers(1, bound, fixed(word, 0))[0]) for word in words if word < limit]
    assert drawn == expected
    for word in words:
        if word >= limit:
            assert uniform_integers(1, bound, fixed(word, 0)).tolist() == [0], "the rejected word is drawn again"


@given(
    st.floats(0, 1, exclude_min=True, exclude_max=True), st.lists(st.integers(0, 2**32 - 1), min_size=40, max_size=40)
)
@settings(max_examples=200, deadline=None)
def test_a_flip_is_an_exact_comparison_with_the_rate(rate: float, words: list[int]) -> None:
    """The uniform real number 0.w1 w2 w3 ... in base 2**32 lies below the rate, with no rounding anywhere."""
    digits = []
    remainder = Fraction(rate)
    while remainder:
        digit, remainder = divmod(remainder * 2**32, 1)
        digits.append(int(digit))
    for equal in range(min(len(digits), 3) + 1):  # numbers that agree with the rate in their first digits
        number = (digits[:equal] + words)[:40]
        below = sum(Fraction(word, 2 ** (32 * place)) for place, word in enumerate(number, 1)) < Fraction(rate)
        assert coin_flips(1, rate, fixed(*number)).tolist() == [below]


def test_bad_arguments_of_the_draws() -> None:
    for bound in (0, 2**32 + 1):
        with pytest.raises(ValueError, match="does not lie in"):
            uniform_integers(1, bound, fixed(0))
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="does not lie in"):
            coin_flips(1, rate, fixed(0))
    assert sampling_rate(128, 60_000) == 128 / 60_000
