"""Random words: known answers, every bit of the key counts, nothing comes twice, and the laws of words and normals."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from scipy import stats

from understudy.privacy.randomness import streams as keyed_words
from understudy.privacy.randomness.streams import KEY_BYTES, LOW_BITS, KeyedWords, Randomness

CPU = torch.device("cpu")
FALSE_ALARM = 1e-6
DEVICES = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]
# RFC 8439, appendix A.1, test vectors 1 and 2: the first two blocks under a key of zeros.
CHACHA_OF_ZEROS = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def stream(key: bytes = bytes(KEY_BYTES), device: torch.device = CPU) -> KeyedWords:
    return KeyedWords(key, device)


def raw(words: torch.Tensor) -> bytes:
    return words.cpu().numpy().tobytes()


def test_words_of_the_processor_are_shake_256_of_key_and_block():
    words = stream(b"k" * KEY_BYTES)
    for block, count in enumerate((3, 5)):
        expected = hashlib.shake_256(b"k" * KEY_BYTES + block.to_bytes(16, "little")).digest(8 * count)
        assert raw(words.words(count)) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_words_of_a_card_are_chacha20():
    words = stream(device=torch.device("cuda"))
    assert raw(words.words(3)) == CHACHA_OF_ZEROS[:24]
    assert raw(words.words(8)) == CHACHA_OF_ZEROS[64:], "a new draw starts a new block"


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_noise_is_never_captured_in_a_graph():
    words = stream(device=torch.device("cuda"))
    words.normals(8)
    with pytest.raises(RuntimeError, match="the same at every replay"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        words.normals(8)


class StandIn:
    """A kernel on the CPU that answers with the given bytes and values."""

    def __init__(self, words: bytes, normals: torch.Tensor) -> None:
        self.random_words = lambda key, first, count: torch.frombuffer(bytearray(words), dtype=torch.int64)
        self.random_normals = lambda key, first, count: normals


KNOWN, VALUES = CHACHA_OF_ZEROS[:32], torch.arange(9.0, dtype=torch.float64)


@pytest.mark.parametrize(
    ("words", "normals", "trusted"),
    [
        (KNOWN, VALUES, True),
        (bytes(32), VALUES, False),
        (KNOWN, torch.zeros(9), False),
        (KNOWN, VALUES * torch.nan, False),
        (KNOWN[:-1], VALUES, False),  # raises: not whole words
    ],
)
def test_a_kernel_is_trusted_only_after_a_known_answer(words, normals, trusted):
    assert keyed_words._answers_as_known(StandIn(words, normals), CPU) is trusted


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_every_bit_of_the_key_changes_the_stream(device):
    """A generator that kept 32 bits of its key could be searched through."""
    seen = {raw(stream(device=device).words(1))}
    for bit in range(8 * KEY_BYTES):
        key = bytearray(KEY_BYTES)
        key[bit // 8] ^= 1 << bit % 8
        seen.add(raw(stream(bytes(key), device).words(1)))
    assert len(seen) == 8 * KEY_BYTES + 1


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="key: 24 bytes, but 32"):
        stream(bytes(24))


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_nothing_is_handed_out_twice(device):
    words = stream(device=device)
    pieces = [words.words(count) for count in (1, 7, 8, 9, 1000)] + [words.normals(9).view(torch.int64)]
    every = torch.cat(pieces).tolist()
    assert len(set(every)) == len(every), "a collision of 64 random bits has probability 3e-14"


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_words_are_uniform_over_all_bits(device):
    words = stream(Randomness().bits(KEY_BYTES), device).words(20_000).cpu()
    for bit in range(64):
        ones = int(((words >> bit) & 1).sum())
        assert stats.binomtest(ones, 20_000, 0.5).pvalue > FALSE_ALARM / 64 / len(DEVICES)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_normals_follow_their_law_and_do_not_depend_on_their_neighbours(device):
    """Kolmogorov-Smirnov on values, on sums of pairs that share a radius, and on sums of neighbours."""
    for count in (100_000, 99_999):
        values = stream(Randomness().bits(KEY_BYTES), device).normals(count).cpu()
        assert values.dtype == torch.float64
        assert len(values) == count
        half = count // 2
        pairs = (values[:half] + values[-half:]) / math.sqrt(2)
        neighbours = (values[: 2 * half : 2] + values[1 : 2 * half : 2]) / math.sqrt(2)
        for sample in (values, pairs, neighbours):
            assert stats.kstest(sample.numpy(), "norm").pvalue > FALSE_ALARM / 6 / len(DEVICES)


def test_the_smallest_and_the_largest_word_give_finite_values(monkeypatch):
    """The radius ends at 9.4 deviations, where the tail of the normal law holds 5e-21."""
    for word in (0, -1, LOW_BITS, -(2**63)):
        monkeypatch.setattr(KeyedWords, "_hashed", lambda self, count, word=word: torch.full((count,), word))
        values = stream().normals(2)
        assert bool(torch.isfinite(values).all())
        assert float(values.norm()) < 9.5


def test_threads_never_get_the_same_block():
    words = stream()
    with ThreadPoolExecutor(8) as pool:
        drawn = [int(piece) for piece in pool.map(lambda _: words.words(1), range(2000))]
    assert len(set(drawn)) == len(drawn)


def test_a_forked_process_cannot_repeat_the_stream(monkeypatch):
    words = stream()
    words.words(1)
    monkeypatch.setattr("understudy.privacy.randomness.streams.os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="forked process"):
        words.words(1)


def test_no_words_are_no_block():
    words = stream()
    assert words.words(0).shape == words.normals(0).shape == (0,)
    assert raw(words.words(1)) == raw(stream().words(1))
