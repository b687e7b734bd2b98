"""The annotator: a small classifier without batch statistics, so that it can be trained example by example."""

from __future__ import annotations

from torch import Tensor, nn


class Annotator(nn.Module):
    """Two stride-2 convolutions and two linear layers with tanh, which bounds activations and suits clipped gradients.

    Takes images (N, C, H, W) in [0, 1] and gives the logit of each class.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        channels, height, width_in_pixels = shape
        places = -(-height // 4) * -(-width_in_pixels // 4)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2, padding=2),
            nn.Tanh(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(2 * width * places, 4 * width),
            nn.Tanh(),
            nn.Linear(4 * width, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes)."""
        logits: Tensor = self.layers(2 * images - 1)
        return logits
