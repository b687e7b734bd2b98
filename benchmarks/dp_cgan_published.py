"""DP-CGAN with the networks of its paper, at an epsilon that is true: is it the recipe or the published figure?

    python benchmarks/dp_cgan_published.py mnist --epsilon 10
    python benchmarks/dp_cgan_published.py mnist --epsilon 10 --clip layers

The method ``dp-cgan`` of the package has the convolutional networks of ``dpgan`` and Adam. The published one (R.
Torkzadehmahani, P. Kairouz, B. Paten 2019) has one hidden layer of 128 in both networks, latent values that are uniform
in -1..1, gradient descent at a rate of 0.1 that falls to 0.052 for the discriminator and Adam for the generator, which
take turns step by step. Here are these networks, with the private step of ``dp-cgan``: Poisson batches of 600, clip
1.1, 30,000 steps, noise on the sum of clipped gradients of real images, and the event and the accountant of its plan.

``--clip whole`` bounds the gradient of an image, ``--clip layers`` each of its four parts (two matrices, two biases) by
the same C, as the published code does. The whole is then as long as 2C, so its noise is twice as large for the same
epsilon. Writes ``results/dp-cgan-published-networks-<dataset>.json``, a line for each clip.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import understudy as us
from record import command_line, current_commit, device_name
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.release.export import export

_HIDDEN, _LATENT = 128, 100
_CLIP, _BATCH, _STEPS = 1.1, 600, 30_000
_RATES, _FALLING = (0.1, 0.052), 10_000  # of the discriminator, and over how many steps it falls
_PARTS = 4  # two matrices and two biases
_DELTA = 1e-5


def matrix(rows: int, columns: int) -> Tensor:
    """Random weights, as large as the paper's."""
    return torch.randn(rows, columns) / (rows / 2) ** 0.5


@dataclass
class Discriminator:
    """One hidden layer; its input is an image and its class."""

    hidden: Tensor
    hidden_bias: Tensor
    last: Tensor
    last_bias: Tensor

    @classmethod
    def random(cls, inputs: int) -> Discriminator:
        """Before the first step."""
        return cls(matrix(inputs, _HIDDEN), torch.zeros(_HIDDEN), matrix(_HIDDEN, 1), torch.zeros(1))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All that is learnt."""
        return self.hidden, self.hidden_bias, self.last, self.last_bias

    def logits(self, inputs: Tensor) -> Tensor:
        """How real they look."""
        return functional.relu(inputs @ self.hidden + self.hidden_bias) @ self.last + self.last_bias

    def clipped_sum(self, inputs: Tensor, real: bool, layers: bool) -> list[Tensor]:
        """The gradients of the log loss, each clipped, added up.

        A gradient of a matrix is an outer product, so that its length is a product of two lengths.
        """
        before = inputs @ self.hidden + self.hidden_bias
        hidden = functional.relu(before)
        at_last = torch.sigmoid(hidden @ self.last + self.last_bias) - float(real)
        at_hidden = (at_last @ self.last.T) * (before > 0)
        short, long = at_last.norm(dim=1), at_hidden.norm(dim=1)
        lengths = torch.stack([inputs.norm(dim=1) * long, long, hidden.norm(dim=1) * short, short])
        if not layers:
            lengths = lengths.norm(dim=0).expand_as(lengths)
        shares = (_CLIP / lengths.clamp(min=_CLIP))[..., None]
        return [
            inputs.T @ (at_hidden * shares[0]),
            (at_hidden * shares[1]).sum(0),
            hidden.T @ (at_last * shares[2]),
            (at_last * shares[3]).sum(0),
        ]


class Generator(torch.nn.Module):
    """One hidden layer; its input is noise and a class."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.hidden, self.last = torch.nn.Linear(_LATENT + classes, _HIDDEN), torch.nn.Linear(_HIDDEN, pixels)
        for layer in (self.hidden, self.last):
            layer.weight.data.copy_(matrix(layer.in_features, layer.out_features).T)
            layer.bias.data.zero_()
        self.classes = classes

    def forward(self, named: Tensor) -> Tensor:
        """Images of these classes, each with its class: what a discriminator takes."""
        latent = torch.rand(len(named), _LATENT) * 2 - 1
        images = torch.sigmoid(self.last(functional.relu(self.hidden(torch.cat([latent, named], dim=1)))))
        return torch.cat([images, named], dim=1)

    def some(self, number: int) -> Tensor:
        """As many classes by chance."""
        return functional.one_hot(torch.randint(self.classes, (number,)), self.classes).float()


def trained(data: us.ImageDataset, multiplier: float, layers: bool) -> Generator:
    """Step by step; ``multiplier``: the noise, in units of the length that a gradient can have."""
    images = torch.tensor(data.images.reshape(len(data), -1)).float() / 255
    classes = data.domain.classes or 1
    rows = torch.cat([images, functional.one_hot(torch.tensor(data.labels), classes).float()], dim=1)
    discriminator, generator = Discriminator.random(rows.shape[1]), Generator(images.shape[1], classes)
    optimiser = torch.optim.Adam(generator.parameters())
    deviation = multiplier * _CLIP * (_PARTS**0.5 if layers else 1.0)
    for step in range(_STEPS):
        drawn = torch.nonzero(torch.rand(len(rows)) < _BATCH / data.domain.nominal_records)[:, 0]
        fakes = generator(generator.some(_BATCH))
        with torch.no_grad():
            private = discriminator.clipped_sum(rows[drawn], True, layers)
            public = discriminator.clipped_sum(fakes, False, layers)
            rate = _RATES[0] + (_RATES[1] - _RATES[0]) * min(1.0, step / _FALLING)
            for part, real, fake in zip(discriminator.parts, private, public, strict=True):
                part -= rate / _BATCH * (real + deviation * torch.randn_like(real) + fake)
        loss = functional.softplus(-discriminator.logits(fakes)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return generator


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    data, test, layers = us.load(options.dataset), us.load(options.dataset, split="test"), options.clip == "layers"
    method = get_method("dp-cgan")
    config = configure(method, {"privacy": {"batch": _BATCH, "steps": _STEPS}}, None)
    plan = method.plan(config, data.domain, us.Budget(options.epsilon, _DELTA))
    multiplier = plan.events[0].noise_multiplier
    started = time.perf_counter()
    generator = trained(data, multiplier, layers)
    seconds = time.perf_counter() - started
    labels = np.arange(options.samples) % generator.classes
    with torch.no_grad():
        drawn = generator(functional.one_hot(torch.tensor(labels), generator.classes).float())[:, : -generator.classes]
    images = (drawn.reshape(-1, *data.pictures.shape[1:]) * 255).round().byte().numpy()
    scoring = EvaluationConfig(device="cpu", real_data_private=False, reference=False)
    accuracy = evaluate(images, labels, data, test, ["cnn"], scoring).value("cnn")
    row = {
        "clip": options.clip,
        "epsilon": plan.epsilon,
        "delta": _DELTA,
        "noise_multiplier": multiplier,
        "cnn_accuracy": accuracy,
        "samples": options.samples,
        "seed": options.seed,
        "train_seconds": round(seconds, 1),
        "device": device_name(torch.device("cpu")),
        "command": command_line(leave_out=("--commit", "--results", "--threads", "--to")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
    }
    path = options.results / f"dp-cgan-published-networks-{options.dataset}.json"
    lines = json.loads(path.read_text())["published_networks"] if path.exists() else []
    kept = [line for line in lines if (line["clip"], line["epsilon"]) != (row["clip"], row["epsilon"])]
    path.write_text(json.dumps({"dataset": options.dataset, "published_networks": [*kept, row]}, indent=1) + "\n")
    print(row)
    if options.to is not None:
        export(images[:100], labels[:100], options.to)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["mnist", "fashion-mnist"])
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--clip", default="whole", choices=["whole", "layers"])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0, help="noise comes from it, so this is a measurement, no release")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--to", type=Path, help="leave a hundred images here, too")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
