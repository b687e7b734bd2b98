"""Torch generators from the one source of randomness: repeatable with a seed alone, and secret where they must be."""

from __future__ import annotations

import numpy as np
import torch

from understudy.privacy.randomness.streams import Randomness


class Known(Randomness):
    """Randomness whose bytes are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[bytes] = []

    def bits(self, count: int) -> bytes:
        self.given.append(super().bits(count))
        return self.given[-1]


def test_the_whole_state_of_a_secret_generator_is_drawn():
    """Its words are those of a Mersenne twister that numpy runs from the same 624 words."""
    source = Known()
    generator = source.secret_generator()
    (key,) = source.given
    twister = np.random.MT19937()
    words = np.frombuffer(key[8:], dtype=np.uint32)
    assert len(words) == 624
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    expected = twister.random_raw(1000) % 2**16
    assert torch.randint(0, 2**16, (1000,), generator=generator).tolist() == expected.tolist()


def test_the_seed_of_a_secret_generator_does_not_tell_its_values():
    generator = Randomness().secret_generator()
    guess = torch.Generator().manual_seed(generator.initial_seed())
    assert not torch.equal(torch.rand(8, generator=generator), torch.rand(8, generator=guess))


def test_generators_are_fresh_and_repeat_with_a_seed():
    for make in (Randomness.generator, Randomness.secret_generator):
        drawn = [torch.randn(5, generator=make(Randomness(seed))).tolist() for seed in (None, None, 7, 7, 8)]
        assert drawn[2] == drawn[3]
        assert len({tuple(values) for values in drawn}) == 4
