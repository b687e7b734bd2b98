"""The teacher: a classifier on fixed features, small enough to be trained under differential privacy."""

from __future__ import annotations

from torch import Tensor, nn

from understudy.models.generator import TeacherModelConfig
from understudy.models.patches import Patches
from understudy.models.scattering import Scattering


class Teacher(nn.Module):
    """Features, which are fixed, and a head that is trained: images (N, C, H, W) in [0, 1] to logits.

    The head of a linear teacher is one layer on all features; that of a network is two convolutions over the maps and a
    layer, with tanh, which bounds activations and suits clipped gradients.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, config: TeacherModelConfig) -> None:
        super().__init__()
        self.features = fixed_features(shape, config)
        self.head: nn.Module
        if config.kind == "linear":
            self.head = nn.Linear(self.features.count, classes)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        else:
            self.head = _network(self.features, classes, config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes)."""
        return self.judge(self.features(images))

    def judge(self, features: Tensor) -> Tensor:
        """Logits of features (N, maps, rows, columns)."""
        logits: Tensor = self.head(features.flatten(1) if isinstance(self.head, nn.Linear) else features)
        return logits


def fixed_features(shape: tuple[int, int, int], config: TeacherModelConfig) -> Scattering | Patches:
    """Features as a teacher's config names them; those of patches still without filters."""
    if config.features == "patches":
        return Patches(shape, config.filters, config.mirrored)
    return Scattering(shape, config.scales, config.directions)


def _network(features: Scattering | Patches, classes: int, width: int) -> nn.Sequential:
    rows, columns = (-(-side // 2) for side in features.grid)
    return nn.Sequential(
        nn.Conv2d(features.maps, width, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(width * rows * columns, classes),
    )
