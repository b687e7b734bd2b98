"""The convolutional classifier of the evaluation: two convolutions (32 and 64 kernels) with dropout and a dense head.

Settings follow seed 000 where it states them. What it leaves open is fixed here, in advance, for every data set: 3x3
kernels, a pooling after each convolution, a dense layer of 128, Adam with one warm-up and cosine cycle, 15 epochs.
Nothing is chosen on test data: the last state of the network is the one that is scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from understudy.devices import choose_device
from understudy.errors import InputError
from understudy.evaluate.checks import Images, Labels
from understudy.files import read_tensors

Counter = Callable[[int, int], None]  # hears how many of how many are done

PREDICTION_BATCH = 2_000
TINY_PIXELS = 16 * 16
WARM_UP = 0.15  # share of all steps


@dataclass(frozen=True)
class CnnConfig:
    """Architecture and training of the classifier; the defaults are the protocol of the published tables."""

    kernels: tuple[int, int] = (32, 64)
    convolutions: int = 1  # per stage; a stage ends with a pooling
    normalise: bool = False  # batch normalisation after each convolution
    hidden: int = 128
    dropout: float = 0.25
    dense_dropout: float = 0.5
    epochs: int = 15
    minimum_steps: int = 500  # small data sets run more epochs, until this many steps are made
    batch: int = 256
    learning_rate: float = 2e-3
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("convolutions", "hidden", "epochs", "minimum_steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)}, but at least 1 is needed; raise it")
        for name in ("dropout", "dense_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)} is not a probability below 1; pass 0 to switch it off")

    def schedule(self, number: int) -> tuple[int, int, int]:
        """Images in a batch, steps per epoch and epochs for ``number`` training images; known before training starts.

        A small set is trained in smaller batches and for more epochs, because it needs steps rather than smooth ones.
        """
        size = min(self.batch, max(32, number // 16), number)
        steps = number // size
        return size, steps, max(self.epochs, math.ceil(self.minimum_steps / steps))

    def describe(self) -> str:
        """The settings in words, for a result."""
        return (
            f"{self.convolutions} + {self.convolutions} 3x3 convolutions of {self.kernels[0]} and {self.kernels[1]} "
            f"kernels{' with batch normalisation' if self.normalise else ''}, dense layer of {self.hidden}, dropout "
            f"{self.dropout} and {self.dense_dropout}, Adam {self.learning_rate:g}, {self.epochs} epochs (at least "
            f"{self.minimum_steps} steps) of batches of {self.batch} (fewer for small sets)"
        )


class CnnNetwork(nn.Module):
    """Two convolutional stages and a dense head; takes images scaled to -1..1."""

    def __init__(self, shape: tuple[int, int, int], classes: int, config: CnnConfig) -> None:
        super().__init__()
        channels, height, width = shape
        stages: list[nn.Module] = []
        for kernels in config.kernels:
            stages += _stage(channels, kernels, config)
            channels, height, width = kernels, height // 2, width // 2
        self.stages = nn.Sequential(*stages, nn.Dropout(config.dropout), nn.Flatten())
        self.dense = nn.Sequential(nn.Linear(channels * height * width, config.hidden), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(config.dense_dropout), nn.Linear(config.hidden, classes))

    def features(self, images: Tensor) -> Tensor:
        """The activations of the dense layer."""
        activations: Tensor = self.dense(self.stages(images))
        return activations

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class."""
        logits: Tensor = self.head(self.features(images))
        return logits


@dataclass(frozen=True)
class TrainedCnn:
    """A trained network with what is needed to use it on plain arrays."""

    network: CnnNetwork
    config: CnnConfig
    classes: int
    device: torch.device

    @property
    def parameters(self) -> int:
        """How many numbers were learnt."""
        return sum(values.numel() for values in self.network.parameters())

    def probabilities(self, images: Images) -> NDArray[np.float64]:
        """P(class | image) for each image, rows summing to one."""
        logits = self._apply(images, features=False)
        result: NDArray[np.float64] = logits.double().softmax(dim=1).numpy()
        return result

    def predict(self, images: Images) -> Labels:
        """The most probable class of each image."""
        result: Labels = self._apply(images, features=False).argmax(dim=1).numpy()
        return result

    def features(self, images: Images) -> Tensor:
        """The dense activations of each image, on the processor."""
        return self._apply(images, features=True)

    def as_bytes(self) -> bytes:
        """The weights in the safetensors format."""
        from safetensors.torch import save

        return save({name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()})

    def _apply(self, images: Images, features: bool) -> Tensor:
        function = self.network.features if features else self.network
        pieces = []
        with torch.inference_mode():
            for start in range(0, len(images), PREDICTION_BATCH):
                batch = as_tensor(images[start : start + PREDICTION_BATCH]).to(self.device)
                pieces.append(function(scale(batch)).float().cpu())
        return torch.cat(pieces)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor, copied only where torch could not share it (read-only or strided memory)."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def scale(images: Tensor) -> Tensor:
    """Bytes 0..255 to numbers -1..1, by the fixed range and never by what the data contain."""
    # On a processor channels-last convolutions are several times faster; the layout spreads from here through the net.
    return images.float().div(127.5).sub(1).contiguous(memory_format=torch.channels_last)


def train_cnn(
    images: Images, labels: Labels, classes: int, config: CnnConfig | None = None, listener: Counter | None = None
) -> TrainedCnn:
    """Train the classifier with the whole data set on the device; the same seed gives the same start and order.

    ``listener`` hears after each epoch how many of how many are done.
    """
    config = config or CnnConfig()
    device = choose_device(config.device)
    image_tensor, label_tensor = as_tensor(images).to(device), as_tensor(labels).to(device)
    channels, height, width = (int(side) for side in images.shape[1:])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        network = CnnNetwork((channels, height, width), classes, config).to(device)
        with threads_for(height * width):
            _fit(network, (image_tensor, label_tensor), config, listener)
    return TrainedCnn(network.eval(), config, classes, device)


def load_cnn(path: Path, shape: tuple[int, int, int], classes: int, config: CnnConfig) -> TrainedCnn | None:
    """A network whose weights were kept, or None where there are none or they do not fit."""
    if not path.is_file():
        return None
    device = choose_device(config.device)
    try:
        with torch.random.fork_rng(devices=[]):  # the first weights are drawn and thrown away
            network = CnnNetwork(shape, classes, config)
        network.load_state_dict(read_tensors(path)[0])
    except (InputError, RuntimeError):
        return None
    return TrainedCnn(network.to(device).eval(), config, classes, device)


def _stage(channels: int, kernels: int, config: CnnConfig) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for index in range(config.convolutions):
        layers.append(nn.Conv2d(channels if index == 0 else kernels, kernels, 3, padding=1))
        if config.normalise:
            layers.append(nn.BatchNorm2d(kernels))
        if index == config.convolutions - 1:
            layers.append(nn.MaxPool2d(2))  # before the ReLU, with which it commutes: fewer values to rectify
        layers.append(nn.ReLU())
    return layers


@contextmanager
def threads_for(pixels: int) -> Iterator[None]:
    """One thread for tiny images: they gain little from more, and on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if pixels <= TINY_PIXELS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rate_share(progress: float) -> float:
    """Factor of the learning rate: linear warm-up over the first part, then half a cosine down to zero."""
    if progress < WARM_UP:
        return 0.05 + 0.95 * progress / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))


def _fit(network: CnnNetwork, data: tuple[Tensor, Tensor], config: CnnConfig, listener: Counter | None) -> None:
    images, labels = data
    size, steps, epochs = config.schedule(len(images))
    optimiser = torch.optim.Adam(network.parameters(), lr=config.learning_rate, fused=images.is_cuda)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_share(step / (steps * epochs)))
    network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(images), device=images.device)
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            loss = F.cross_entropy(network(scale(images[chosen])), labels[chosen])
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
        if listener is not None:
            listener(epoch + 1, epochs)
