"""Small networks and a slow, obvious way to clip their gradients: one example at a time, with autograd, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients, shaped

Inputs = tuple[Tensor | None, ...]


class Mixed(nn.Module):
    """Every kind of layer in one network: images (N, 2, 8, 8) and three labels an example in, logits (N,) out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, stride=2, padding=1)
        self.normal = nn.GroupNorm(2, 8)
        self.grouped = nn.Conv2d(8, 12, 3, padding=(1, 2), dilation=(1, 2), groups=4)
        self.larger = nn.ConvTranspose2d(12, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.dense = nn.Linear(6 * 8 * 8, 7)
        self.normal_too = nn.LayerNorm(7)
        self.table = nn.Embedding(5, 6)
        self.planes = nn.Conv2d(5, 3, 4, stride=2, padding=1)
        self.last = nn.Linear(7 + 6 + 3, 1, bias=False)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = torch.tanh(self.normal(self.first(images)))
        hidden = torch.tanh(self.larger(torch.tanh(self.grouped(hidden))))
        hidden = self.normal_too(torch.tanh(self.dense(hidden.flatten(1))))
        one_hot = nn.functional.one_hot(labels[:, 0], 5).to(images.dtype)
        planes = torch.tanh(self.planes(one_hot[:, :, None, None].expand(-1, -1, 6, 6))).mean(dim=(2, 3))
        return self.last(torch.cat([hidden, self.table(labels).mean(dim=1), planes], dim=1)).flatten()


def mixed_inputs(count: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 2, 8, 8, dtype=dtype), torch.randint(0, 5, (count, 3))


def quadratic(outputs: Tensor) -> Tensor:
    """A loss (N,) of any output that weighs every value differently."""
    flat = outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]
    slopes = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype, device=flat.device)
    return (flat.square() * slopes).sum(dim=1) + (flat * slopes).sum(dim=1)


def rows_one_at_a_time(network: nn.Module, inputs: Inputs, loss: Callable[[Tensor], Tensor] = quadratic) -> Tensor:
    """(N, parameters) in the order of ``FlatParameters``, in float64 whatever the network's type is."""
    network = copy.deepcopy(network).double()
    flat = FlatParameters(copy.deepcopy(network))
    rows = []
    for number in range(len(next(part for part in inputs if part is not None))):
        one = [part if part is None else part[number : number + 1] for part in inputs]
        one = [part.double() if part is not None and part.is_floating_point() else part for part in one]
        network.zero_grad()
        loss(network(*one)).sum().backward()
        row = flat.zeros()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                shaped(row[flat.span(name)], parameter.shape).copy_(parameter.grad)
        rows.append(row)
    return torch.stack(rows)


def clip_slowly(rows: Tensor, clip: float) -> Tensor:
    return rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)


def units_one_at_a_time(
    network: nn.Module, inputs: Inputs, rows: int, loss: Callable[[Tensor], Tensor] = quadratic
) -> Tensor:
    """(units, parameters): the sums over the rows of each unit, which follow each other."""
    return rows_one_at_a_time(network, inputs, loss).unflatten(0, (-1, rows)).sum(dim=1)


def fast_sum(
    network: nn.Module,
    inputs: Inputs,
    clip: float = float("inf"),
    precision: str = "fp32",
    loss: Callable[[Tensor], Tensor] = quadratic,
    rows: int = 1,
) -> tuple[Tensor, Tensor]:
    """The engine's sum of clipped gradients, in float64, and the norms that it clipped by."""
    network = copy.deepcopy(network)
    flat = FlatParameters(network)
    engine = PerExampleGradients(network, flat, precision, rows)
    engine.refresh()
    norms: list[Tensor] = []

    def weigh(found: Tensor) -> Tensor:
        norms.append(found)
        factors = (clip / found).clamp(max=1) if clip < float("inf") else torch.ones_like(found)
        return torch.where(torch.isfinite(found), factors, 0.0)

    typed = tuple(
        part.to(engine.number_type) if part is not None and part.is_floating_point() else part for part in inputs
    )
    total = flat.zeros()
    engine.add(total, typed, loss, weigh)
    return total.double(), norms[0]
