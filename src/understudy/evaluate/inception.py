"""The 2015 Inception network behind FID: byte images in, 2048 features out.

The protocol: a grey channel is repeated three times, bytes become values in -1..1, and images are enlarged to 299x299
bilinearly without aligned corners. Arithmetic is plain float32; ``tf32`` and ``fp16`` are faster on a graphics card and
are named in the result, because they move the score a little. Both round to 11 significant bits; bfloat16 keeps 8 and
moves the features ten times as far.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.errors import InputError
from understudy.evaluate.checks import Images
from understudy.evaluate.cnn import as_tensor
from understudy.evaluate.weights import Weights

Precision = Literal["fp32", "tf32", "fp16"]

FEATURES = 2048
SIDE = 299
BATCH_ON_PROCESSOR, BATCH_ON_CARD = 32, 200


class InceptionFeatures:
    """Maps images to the 2048 features of the last pooling layer."""

    dimensions = FEATURES

    def __init__(self, weights: Weights, device: torch.device, precision: Precision = "fp32") -> None:
        if precision not in get_args(Precision):
            raise InputError(f"precision: '{precision}' is unknown; pass fp32, tf32 or fp16")
        self.device = device
        self.precision: Precision = precision
        self.name = weights.name if precision == "fp32" else f"{weights.name} in {precision}"
        self.key = f"{weights.sha256}-{precision}"  # whatever changes the features changes the key
        with warnings.catch_warnings():
            # The published network exists as TorchScript only, and newer torch calls the format deprecated.
            warnings.filterwarnings("ignore", message=".*torch.jit.* is deprecated", category=DeprecationWarning)
            load: Callable[..., torch.jit.ScriptModule] = torch.jit.load
            self.network = load(io.BytesIO(weights.content), map_location=device).float().eval()
        if precision == "fp16":
            self.network = self.network.half()

    def batches(self, images: Images) -> Iterator[Tensor]:
        """The features of the images, batch by batch, on the device."""
        size = BATCH_ON_CARD if self.device.type == "cuda" else BATCH_ON_PROCESSOR
        for start in range(0, len(images), size):
            batch = as_tensor(images[start : start + size]).to(self.device)
            yield self._features(batch)

    def _features(self, batch: Tensor) -> Tensor:
        prepared = prepare(batch)
        if self.precision == "fp16":
            prepared = prepared.half().contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), _convolutions(allow_tf32=self.precision == "tf32"):
            features: Tensor = self.network(prepared).float()
        return features


def prepare(batch: Tensor) -> Tensor:
    """Byte images as the network wants them: three channels, 299x299, values in -1..1."""
    scaled = batch.float().div(127.5).sub(1)
    enlarged = F.interpolate(scaled, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return enlarged.expand(-1, 3, -1, -1).contiguous()


@contextmanager
def _convolutions(allow_tf32: bool) -> Iterator[None]:
    """Set whether cuDNN may round float32 products to TF32 (its default is yes), and put it back afterwards."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allow_tf32
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
