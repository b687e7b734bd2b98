"""Attacks: a score for each canary, higher where it looks as if it had taken part.

Black-box attacks read samples of the release. White-box attacks also read every sanitized value of the run, as somebody
could who broke into the machine that trained, but neither data nor noise; what is public, the data without canaries
among it, they know. An attack may give several rows of scores, of which one is chosen on held-out canaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from understudy.audit.bounds import Numbers
from understudy.audit.canaries import Canaries, Units, presence
from understudy.data.dataset import ImageDataset
from understudy.engines.critics.frequencies import AnswerBasis
from understudy.engines.embedding.means import Embedding
from understudy.engines.records import load_batch, people_in_chunks
from understudy.federated import embedding as client_embeddings
from understudy.federated.contract import FederatedMethod
from understudy.files import read_tensors
from understudy.methods.base import Method
from understudy.methods.config import build_config
from understudy.methods.embedding.dp_hp import HermiteConfig
from understudy.methods.embedding.hermite import HermiteFeatures
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.events import EMBEDDINGS, Event
from understudy.privacy.mechanisms import clip_rows
from understudy.privacy.plan import Plan
from understudy.release.release import Release
from understudy.runs.folder import RunFolder

_SAMPLES = 4000
_NEAREST = 10
_LARGEST = 5
_AT_ONCE = 256  # records, and people
Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AuditedRun:
    """What an attack may know: the public data, the canaries with their coins (for the data alone), and what was made.

    ``data`` are the public records without any canary, ``audited`` those with the canaries that take part.
    """

    method: str
    data: ImageDataset
    audited: ImageDataset
    canaries: Canaries
    release: Release
    folder: Path

    @property
    def implementation(self) -> Method:
        """The method itself."""
        return get_method(self.method)

    def plan(self) -> Plan:
        """The plan of the run, made anew from its decided config, for a processor."""
        headline = self.release.certificate.headline
        config = build_config(
            self.implementation.config_type, {**self.release.method_config, "runtime": {"device": "cpu"}}
        )
        return self.implementation.plan(config, self.audited.domain, Budget(headline.epsilon, headline.delta))


def black_box_scores(release: Release, canaries: Canaries) -> Numbers:
    """How close the nearest samples come to each canary, among those with its label."""
    pixels, labels = release.sample(_SAMPLES)
    samples = pixels.reshape(len(pixels), -1) / 255.0
    if pixels.ndim == 4:  # samples are channels last, canaries channels first
        samples = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1) / 255.0
    samples = samples - samples.mean(axis=0)
    nearness = canaries.patterns() @ samples.T
    if labels is not None and canaries.labels is not None:
        nearness = np.where(canaries.labels[:, None] == labels[None, :], nearness, -np.inf)
    nearest = np.sort(nearness, axis=1)[:, -_NEAREST:]
    return np.where(np.isfinite(nearest), nearest, np.nan_to_num(nearest, neginf=-1e3)).mean(axis=1)


class Witness:
    """Keeps what sanitized values say about canaries while a run goes on.

    ``sides``: answers are about so many frequencies on a side (``gs-wgan``), so canaries are looked for in those.

    Privacy: it is shown sanitized values only; its scores speak about made-up units.
    """

    def __init__(self, canaries: Canaries, sides: Sequence[int] = ()) -> None:
        self._patterns = torch.from_numpy(canaries.patterns())
        _, channels, height, width = canaries.images.shape
        bases = [AnswerBasis((channels, height, width), side) for side in sides]
        self._coarse = {
            basis.values: torch.nn.functional.normalize(basis.project(self._patterns), dim=1) for basis in bases
        }
        self._sums = torch.zeros(len(canaries), dtype=torch.float64)
        self._largest = torch.zeros(len(canaries), 0, dtype=torch.float64)
        self.embedding: Tensor | None = None

    def __call__(self, purpose: str, value_dp: Tensor) -> None:
        """One sanitized value."""
        value_dp = value_dp.detach().cpu().double()
        if purpose in EMBEDDINGS:
            self.embedding = value_dp
            return
        patterns = self._coarse.get(value_dp.shape[-1], self._patterns)
        if value_dp.dim() == 2 and value_dp.shape[1] % patterns.shape[1] == 0:
            towards = -patterns @ value_dp.view(-1, patterns.shape[1]).T  # (canaries, generated images)
            self._sums += towards.sum(dim=1)
            seen = torch.cat([self._largest, towards], dim=1)
            self._largest = seen.topk(min(_LARGEST, seen.shape[1]), dim=1).values

    def slope_scores(self) -> Numbers | None:
        """How far generated images were told to move towards each canary: all of them, and those told so most clearly.

        The second is for answers of one critic each, of which few know the canary. None where nothing was seen.
        """
        if not self._largest.shape[1]:
            return None
        return torch.stack([self._sums, self._largest.mean(dim=1)]).numpy()


def embedding_scores(run: AuditedRun, total_dp: Tensor, event: Event) -> Numbers | None:
    """How much of each canary a noisy embedding holds; None where its features are those of codes.

    The public records are known and subtracted. A canary is in one class, so each class is a sum of its own.
    """
    if isinstance(run.implementation, FederatedMethod):
        contract = run.implementation.contract(run.plan())
        features: Features | None = client_embeddings.features(contract, torch.device("cpu"))
    else:
        features = _features(run)
    if features is None:
        return None
    images, labels = load_batch(run.canaries, slice(None), torch.device("cpu"))
    classes = run.data.domain.classes or 1
    rest = total_dp.view(classes, -1) - _known(run, features, classes)
    own = features(images).double()
    found = [(labels == label).nonzero().flatten() for label in range(classes)]
    parts = [
        presence(rest[label], [Units.by_coin(own[members], 0.5)], event.noise_multiplier)
        for label, members in enumerate(found)
        if len(members)
    ]
    scores = torch.zeros(len(parts[0]), len(run.canaries), dtype=torch.float64)
    scores[:, torch.cat(found)] = torch.cat(parts, dim=1)
    return scores.numpy()


def _known(run: AuditedRun, features: Features, classes: int) -> Tensor:
    """What the public records add to an embedding: (classes, features)."""
    if run.data.domain.unit == "person" and not run.implementation.federated:
        return _known_people(run, features, classes)
    images, labels = load_batch(run.data, slice(None), torch.device("cpu"))
    rows = features(images).double()
    if run.implementation.federated:  # a client's records share its norm, see ``federated.embedding``
        owners = torch.from_numpy(run.data.unit_of_record("client"))
        sizes = torch.bincount(owners)
        of_class = torch.bincount(owners * classes + labels, minlength=len(sizes) * classes)
        rows *= (of_class[owners * classes + labels] * sizes[owners]).double().rsqrt()[:, None]
    return torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add_(0, labels, rows)


def _known_people(run: AuditedRun, features: Features, classes: int) -> Tensor:
    """The same where a person's records are clipped as one row."""
    total: Tensor | None = None
    for records, owners, people in people_in_chunks(run.data, _AT_ONCE, _AT_ONCE):
        images, labels = load_batch(run.data, records, torch.device("cpu"))
        rows = features(images).double()
        sums = torch.zeros(people * classes, rows.shape[1], dtype=torch.float64)
        sums.index_add_(0, owners * classes + labels, rows)
        added = clip_rows(sums.view(people, -1), 1.0).sum(dim=0).view(classes, -1)
        total = added if total is None else total + added
    return torch.zeros(classes, 1, dtype=torch.float64) if total is None else total


def _features(run: AuditedRun) -> Features | None:
    """The public features of the run's embedding, from what it kept; None for features of codes."""
    kept, settings = RunFolder(run.folder), run.release.method_config["method"]
    if kept.groups.exists():
        groups = read_tensors(kept.groups)[0]["groups"]
        own = {key: value for key, value in settings.items() if key in HermiteConfig.model_fields}
        hermite = HermiteConfig.model_validate(own)
        return lambda images: HermiteFeatures(groups, images[0].numel(), hermite)(images)
    if "autoencoder" in settings or not kept.frequencies.exists():
        return None
    frequencies = read_tensors(kept.frequencies)[0]["frequencies"]
    return Embedding(frequencies, settings.get("embedding", settings)["size_share"])
