"""Mean embeddings of clients: what each sends once, with its own noise, and what the server makes of their sum.

A client with n records, n_c of them in class c, sends

    v = sum over its records (x, y) of  e(y) (x) phi(x) / sqrt(n_y * n)  +  noise,

where phi are public random Fourier features of the blurred image, of norm one, the last of them a constant. |v| <= 1
whatever the records, because each class has norm at most sqrt(n_c / n). The square root keeps rare classes audible. The
sum over clients, class by class and divided by its constant, is the mean embedding that the generator starts from; the
squares of the constants are the shares of the classes, nearly.
"""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import torch
from torch import Tensor

from understudy.engines.embedding.means import Embedding, NoisyMeans
from understudy.errors import InputError
from understudy.federated.contract import DIGEST_BYTES, Contract, EmbeddingTerms
from understudy.privacy.randomness.streams import KeyedWords

_QUESTION, _ANSWER = b"USE1", b"USF1"
_HEAD = struct.Struct(f"<4sI{DIGEST_BYTES}s")  # kind, client, contract
_MOST_DEVIATIONS = 40  # of the noise beyond the norm of an embedding; what lies further is no answer
_SMALLEST_SIZE = 0.01  # of its due, for a class of which hardly any client has an image


def features(contract: Contract, device: torch.device) -> Embedding:
    """The features of a federation: drawn from its public name, so that all parties have the same."""
    terms = _terms(contract)
    channels, height, width = contract.domain.shape
    public_stream = KeyedWords(hashlib.sha256(contract.federation.encode()).digest(), torch.device("cpu"))
    shape = (channels, height, width, terms.frequencies)
    drawn = public_stream.normals(math.prod(shape)).view(shape).numpy()
    drawn = np.einsum("ab,cbwf->cawf", _blur(height, terms.smoothing), drawn)
    drawn = np.einsum("ab,chbf->chaf", _blur(width, terms.smoothing), drawn)
    scales = np.resize(terms.length_scales, terms.frequencies) * contract.values**0.5
    frequencies = (drawn.reshape(contract.values, terms.frequencies) / scales).astype(np.float32)
    return Embedding(torch.from_numpy(frequencies).to(device), terms.size_share)


def embedding_shape(contract: Contract) -> tuple[int, int]:
    """Classes, and features of each, the constant one included."""
    return contract.domain.classes or 1, 2 * _terms(contract).frequencies + 1


def client_embedding(images: Tensor, labels: Tensor | None, embedding: Embedding, classes: int) -> Tensor:
    """The embedding (classes * features,) of the records of one client, unsanitized; zero without records.

    Privacy: private. Its norm is at most one whatever the records are, and the mechanism clips it to that.
    """
    total = torch.zeros(classes, embedding.count, dtype=torch.float64, device=images.device)
    if len(images):
        own = torch.zeros(len(images), dtype=torch.long, device=images.device) if labels is None else labels
        sizes = torch.bincount(own, minlength=classes).double()
        weights = (sizes[own] * len(images)).rsqrt().unsqueeze(1)
        total.index_add_(0, own, embedding(images.float() / 255).double() * weights)
    return total.flatten()


def noisy_means(total_dp: Tensor, contract: Contract) -> NoisyMeans:
    """The mean embedding of each class and its share, from the noisy sum over all clients.

    Privacy: post-processing.
    """
    classes, count = embedding_shape(contract)
    total_dp = total_dp.view(classes, count)
    least = _SMALLEST_SIZE * contract.limits.clients / classes**0.5
    sizes_dp = (total_dp[:, -1] / _terms(contract).size_share ** 0.5).clamp(min=least)
    shares_dp = sizes_dp.square() / sizes_dp.square().sum()
    return NoisyMeans((total_dp[:, :-1] / sizes_dp.unsqueeze(1)).float(), shares_dp.float())


def encode_question(client: int, contract: Contract) -> bytes:
    """What asks a client for its embedding; the same bytes whenever it is asked."""
    return _HEAD.pack(_QUESTION, client, contract.digest)


def is_question(content: object, client: int, contract: Contract) -> bool:
    """Whether these bytes ask this client for its embedding under this contract."""
    return contract.embedding is not None and content == encode_question(client, contract)


def encode_answer(row_dp: Tensor, client: int, contract: Contract) -> bytes:
    """A sanitized embedding as bytes of a fixed length, in single precision.

    Privacy: the sum over clients needs every client's noise, so nothing may be cut off or rounded to steps that the
    noise does not dwarf. The spacing of single precision is below 1e-6 of the largest value that occurs.
    """
    return _HEAD.pack(_ANSWER, client, contract.digest) + row_dp.float().cpu().numpy().astype("<f4").tobytes()


def decode_answer(content: object, client: int, contract: Contract) -> Tensor | None:
    """The embedding of a valid answer of this client; None for anything else."""
    classes, count = embedding_shape(contract)
    if not isinstance(content, bytes) or len(content) != _HEAD.size + 4 * classes * count:
        return None
    if _HEAD.unpack_from(content) != (_ANSWER, client, contract.digest):
        return None
    row = np.frombuffer(content, "<f4", offset=_HEAD.size).astype(np.float64)
    possible = np.abs(row) <= 1 + _MOST_DEVIATIONS * _deviation(contract)  # false for NaN
    return torch.from_numpy(row) if bool(possible.all()) else None


def _deviation(contract: Contract) -> float:
    return 2 * _terms(contract).noise_multiplier


def _terms(contract: Contract) -> EmbeddingTerms:
    if contract.embedding is None:
        raise InputError("embedding: the contract has none; leave it out")
    return contract.embedding


def _blur(side: int, smoothing: float) -> np.ndarray:
    """A matrix that blurs one axis of an image by so many pixels; the unit matrix for none."""
    if not smoothing:
        return np.eye(side)
    places = np.arange(side)
    weights = np.exp(-((places[:, None] - places[None]) ** 2) / (2 * smoothing**2))
    return weights / weights.sum(axis=0)
