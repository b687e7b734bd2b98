"""The residual classifier of the evaluation, for colour: a block at each of four resolutions, batch normalisation.

Two convolutions and a dense layer learn far less of colour images than can be learnt. So a small residual network,
after K. He et al., "Identity Mappings in Deep Residual Networks" (ECCV 2016), stands beside them: small enough for two
cores, and quick on a graphics card. Its settings are fixed here, in advance, for every data set. Training images are
shifted by up to an eighth of their side and mirrored left to right, each time anew. Nothing is chosen on test data: the
last state of the network is the one that is scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.devices import choose_device, low_precision
from understudy.errors import InputError
from understudy.evaluate.checks import Images, Labels
from understudy.evaluate.cnn import PREDICTION_BATCH, Counter, as_tensor, rate_share, scale, threads_for

_LARGE_SIDE = 32  # images with a longer side are halved by the first convolution, so that they cost no more
_SMALLEST_SIDE = 7  # what is smaller is not halved any more
_SHIFT = 8  # images are shifted by up to one part in so many of a side
_MOMENTUM = 0.9


@dataclass(frozen=True)
class ResnetConfig:
    """Architecture and training of the residual classifier."""

    widths: tuple[int, int, int, int] = (32, 64, 128, 256)  # channels of each block
    epochs: int = 20
    minimum_steps: int = 400  # small data sets run more epochs, until this many steps are made
    batch: int = 256
    learning_rate: float = 0.1  # of batches of that size; of smaller ones less, by the square root
    weight_decay: float = 5e-4
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "minimum_steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)}, but at least 1 is needed; raise it")

    def schedule(self, number: int) -> tuple[int, int, int]:
        """Images in a batch, steps per epoch and epochs for ``number`` training images: known before it starts."""
        size = min(self.batch, max(32, number // 32), number)
        steps = number // size
        return size, steps, max(self.epochs, math.ceil(self.minimum_steps / steps))

    def describe(self) -> str:
        """The settings in words, for a result."""
        return (
            f"residual network, a block of two 3x3 convolutions of {', '.join(map(str, self.widths))} kernels at each "
            f"of four resolutions, batch normalisation, training images shifted by up to an eighth and mirrored, SGD "
            f"{self.learning_rate:g} with momentum {_MOMENTUM:g} and decay {self.weight_decay:g}, {self.epochs} epochs "
            f"(at least {self.minimum_steps} steps) of batches of {self.batch} (fewer for small sets), bf16 on a "
            "graphics card"
        )


class _Block(nn.Module):
    """Norm, ReLU, convolution, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        plain = inputs == outputs and stride == 1
        self.shortcut = None if plain else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Features of ``outputs`` channels."""
        active = F.relu(self.first_norm(features))
        inner = self.second(F.relu(self.second_norm(self.first(active))))
        outer: Tensor = features if self.shortcut is None else self.shortcut(active)
        return outer + inner


class ResnetNetwork(nn.Module):
    """A convolution, residual blocks, the mean over all places and a linear head; takes images scaled to -1..1."""

    def __init__(self, shape: tuple[int, int, int], classes: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        large = max(height, width) > _LARGE_SIDE
        self.start = nn.Conv2d(channels, widths[0], 3, stride=2 if large else 1, padding=1, bias=False)
        side, inputs = min(height, width) // (2 if large else 1), widths[0]
        blocks: list[nn.Module] = []
        for number, outputs in enumerate(widths):
            stride = 2 if number and side >= _SMALLEST_SIDE else 1
            blocks.append(_Block(inputs, outputs, stride))
            side, inputs = math.ceil(side / stride), outputs
        self.blocks, self.norm = nn.Sequential(*blocks), nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class."""
        features = F.relu(self.norm(self.blocks(self.start(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


@dataclass(frozen=True)
class TrainedResnet:
    """A trained network, for use on plain arrays."""

    network: ResnetNetwork
    device: torch.device

    @property
    def parameters(self) -> int:
        """How many numbers were learnt."""
        return sum(values.numel() for values in self.network.parameters())

    def predict(self, images: Images) -> Labels:
        """The most probable class of each image (number, channels, height, width)."""
        found = []
        with torch.inference_mode(), low_precision("bf16", self.device):
            for start in range(0, len(images), PREDICTION_BATCH):
                batch = as_tensor(images[start : start + PREDICTION_BATCH]).to(self.device)
                found.append(self.network(scale(batch)).argmax(dim=1).cpu())
        result: Labels = torch.cat(found).numpy()
        return result


def train_resnet(
    images: Images, labels: Labels, classes: int, config: ResnetConfig | None = None, listener: Counter | None = None
) -> TrainedResnet:
    """Train the classifier with the whole data set on the device; the same seed gives the same start and order.

    ``listener`` hears after each epoch how many of how many are done.
    """
    config = config or ResnetConfig()
    device = choose_device(config.device)
    image_tensor, label_tensor = as_tensor(images).to(device), as_tensor(labels).to(device)
    channels, height, width = (int(side) for side in images.shape[1:])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        network = ResnetNetwork((channels, height, width), classes, config.widths).to(device)
        with threads_for(height * width):
            _fit(network, (image_tensor, label_tensor), config, listener)
    return TrainedResnet(network.eval(), device)


def _fit(network: ResnetNetwork, data: tuple[Tensor, Tensor], config: ResnetConfig, listener: Counter | None) -> None:
    images, labels = data
    size, steps, epochs = config.schedule(len(images))
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=config.learning_rate * math.sqrt(size / config.batch),
        momentum=_MOMENTUM,
        nesterov=True,
        weight_decay=config.weight_decay,
        fused=images.is_cuda,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_share(step / (steps * epochs)))
    network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(images), device=images.device)
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            with low_precision("bf16", images.device):
                loss = F.cross_entropy(network(scale(moved(images, chosen))), labels[chosen])
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
        if listener is not None:
            listener(epoch + 1, epochs)


def moved(images: Tensor, chosen: Tensor) -> Tensor:
    """The chosen images, each shifted by its own number of pixels, its border mirrored, and half of them mirrored."""
    count, (height, width), device = len(chosen), images.shape[2:], images.device
    rows = _shifted(height, torch.rand(count, 1, device=device))
    columns = _shifted(width, torch.rand(count, 1, device=device))
    columns = torch.where(torch.rand(count, 1, device=device) < 0.5, columns, columns.flip(1))
    # the result has its channels last in memory, which convolutions like
    return images[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _shifted(side: int, uniform: Tensor) -> Tensor:
    """For each image which pixels along a side stand where; ``uniform`` draws in 0..1 say how far it is shifted."""
    most = side // _SHIFT
    shifts = (uniform * (2 * most + 1)).long().clamp(max=2 * most) - most
    places = (torch.arange(side, device=uniform.device) + shifts).abs()
    return (side - 1) - ((side - 1) - places).abs()
