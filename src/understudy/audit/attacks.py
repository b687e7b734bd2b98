"""Attacks: a score for each canary, higher where it looks as if it had taken part.

Black-box attacks read samples of the release. White-box attacks also read every sanitized value of the run, as somebody
could who broke into the machine that trained, but neither data nor noise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from understudy.audit.bounds import Numbers
from understudy.audit.canaries import Canaries
from understudy.files import read_tensors
from understudy.release.release import Release
from understudy.training.hermite_features import HermiteFeatures
from understudy.training.kernel_settings import HermiteSettings
from understudy.training.mean_embedding import Embedding
from understudy.training.per_example_layout import FlatParameters

EMBEDDING = "class-wise mean embedding"
_SAMPLES = 4000
_NEAREST = 10
_SMALL_STEP = 1e-3
_RIDGE = 1e-3


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
    """Collects what sanitized values say about canaries while a run goes on.

    Privacy: it is shown sanitized values only; its scores speak about made-up units.
    """

    def __init__(self, canaries: Canaries) -> None:
        self._canaries, self._pixels = canaries, int(np.prod(canaries.images.shape[1:]))
        self._slopes = torch.zeros(self._pixels, dtype=torch.float64)
        self._embedding: Tensor | None = None
        self.seen = 0

    def __call__(self, purpose: str, value_dp: Tensor) -> None:
        """One sanitized value."""
        self.seen += 1
        if purpose == EMBEDDING:
            self._embedding = value_dp.detach().cpu()
        elif value_dp.dim() == 2 and value_dp.shape[1] % self._pixels == 0:
            self._slopes -= value_dp.detach().cpu().double().view(-1, self._pixels).sum(dim=0)

    def scores(self, private_folder: Path, settings: Mapping[str, Any], noise: float) -> Numbers | None:
        """Scores from all that was seen, each kind in its own deviations; None where nothing could be read.

        ``noise`` is the deviation of the noise on an embedding, which is public.
        """
        found = []
        if self._slopes.any():  # generated images were told to move so: towards what was seen
            found.append(self._canaries.patterns() @ self._slopes.numpy())
        features = _features(private_folder, settings)
        if self._embedding is not None and features is not None:
            found.append(_embedded(self._embedding, features, self._canaries, noise))
        return sum((scores - scores.mean()) / scores.std() for scores in found) if found else None


def _features(folder: Path, settings: Mapping[str, Any]) -> Callable[[Tensor], Tensor] | None:
    """The public features of the run's embedding, from what it kept; None for features of codes."""
    if (folder / "groups.safetensors").exists():
        groups = read_tensors(folder / "groups.safetensors")[0]["groups"]
        own = {key: value for key, value in settings.items() if key in HermiteSettings.model_fields}
        hermite = HermiteSettings.model_validate(own)
        return lambda images: HermiteFeatures(groups, images[0].numel(), hermite)(images)
    if "autoencoder" in settings or not (folder / "frequencies.safetensors").exists():
        return None
    frequencies = read_tensors(folder / "frequencies.safetensors")[0]["frequencies"]
    return Embedding(frequencies, settings.get("embedding", settings)["size_share"])


def _embedded(total_dp: Tensor, features: Callable[[Tensor], Tensor], canaries: Canaries, noise: float) -> Numbers:
    """How much of each canary its class holds: the ridge regression of the noisy sum on the features of canaries."""
    own = features(torch.from_numpy(canaries.images).float() / 255).double()
    labels = torch.zeros(len(canaries), dtype=torch.long)
    if canaries.labels is not None:
        labels = torch.from_numpy(canaries.labels)
    scores = np.zeros(len(canaries))
    for label in labels.unique():
        members = labels == label
        rows = own[members]
        gram = rows @ rows.T + (noise**2 + _RIDGE) * torch.eye(len(rows), dtype=torch.float64)
        scores[members.numpy()] = torch.linalg.solve(gram, rows @ total_dp[label].double()).numpy()
    return scores


class StepWitness:
    """Collects, over the steps of DP-SGD, how far each noisy sum points along each canary's own gradient.

    The gradient is not formed: <gradient, sum> is the slope of the canary's loss along the sum.

    Privacy: reads the network as it stood before the step, which is sanitized, and the sanitized sum.
    """

    def __init__(self, network: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
        self._network, self._loss = network, loss
        self.total: Tensor | None = None

    @torch.no_grad()
    def __call__(self, purpose: str, value_dp: Tensor) -> None:
        """One noisy sum of clipped gradients, flat."""
        network = copy.deepcopy(self._network).cpu().double()
        flat = FlatParameters(network)
        step = value_dp.detach().cpu().double() * (_SMALL_STEP / value_dp.norm().item())
        flat.values += step
        ahead = self._loss(network)
        flat.values -= 2 * step
        slopes = ahead - self._loss(network)
        self.total = slopes if self.total is None else self.total + slopes
