"""Exact sums of clipped per-example gradients, without forming the gradients and without a second backward pass.

One forward and one backward pass give every layer's input and the gradient at its output. From the two follow a bound
of each example's gradient norm (Gram matrices, see ``products``), from the norms the clip factors, and from the factors
the weighted sum as one matrix product a layer. A network that mixes examples has no such gradients and is refused. All
its parameters lie in one flat tensor, so that noise and optimiser are single operations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from understudy.configs import Precision
from understudy.engines.dpsgd.convolution import by_patches, convolve, on_card
from understudy.engines.dpsgd.layers import RULES, Gradients, Tapped, gradients_of
from understudy.engines.dpsgd.products import arithmetic, not_above
from understudy.errors import InputError

Loss = Callable[[Tensor], Tensor]  # outputs (N, ...) -> losses (N,), each of its own example alone
Weigh = Callable[[Tensor], Tensor]  # norms (N,) -> weights (N,)


class PerExampleGradients:
    """Weighted sums of the per-example gradients of one network whose parameters lie in one flat tensor.

    With several ``rows`` for each unit, those that follow each other are one: their gradients are summed before the
    unit is measured and weighted. What is said of examples here holds for units.

    The network is used through a copy that shares its weights (in bfloat16: holds them rounded), so its own hooks,
    gradients and modes stay as they are. Numbers: norms, weights and sums in float32 or better; activations and
    products in the stated precision.
    """

    def __init__(self, network: nn.Module, flat: FlatParameters, precision: Precision = "fp32", rows: int = 1) -> None:
        check_modules(network)
        self._rows = rows
        self.precision, self._flat, self._source = precision, flat, network
        self._copy = copy.deepcopy(network).requires_grad_(False)
        self._names = {module: name for name, module in self._copy.named_modules()}
        self._taps: dict[nn.Module, tuple[Tensor, Tensor, int]] = {}
        self._patches: dict[nn.Module, Tensor | None] = {}
        self._margins: dict[tuple[tuple[float, float], ...], Tensor] = {}
        self._tie_weights()
        for module in self._copy.modules():
            if type(module) in RULES:
                module.register_forward_hook(self._tap)
            if isinstance(module, nn.Conv2d):
                self._prepare(module)

    @property
    def number_type(self) -> torch.dtype:
        """The type of activations, and so of inputs."""
        return torch.bfloat16 if self.precision == "bf16" else self._flat.values.dtype

    def refresh(self) -> None:
        """Follow the network's weights; needed before a pass in bfloat16, where the copy holds them rounded."""
        if self.precision == "bf16":
            torch._foreach_copy_(list(self._copy.parameters()), list(self._source.parameters()))

    def add(self, total: Tensor, inputs: tuple[Tensor | None, ...], loss: Loss, weigh: Weigh | Tensor) -> None:
        """Add ``sum_i weight_i gradient_i`` to the flat ``total``; ``weigh`` makes weights of the norms, or is them.

        Privacy: the norms given to ``weigh`` are upper bounds of the norms of what is summed, rounding included (see
        ``measure``), and NaN for an example with anything non-finite on its way, which must then get weight zero and
        leaves no trace. So with weights of at most C / norm no example moves the exact sum by more than C. That holds
        for each addend as it enters the float32 sum; the rounding of that sum itself is not bounded here, like all
        floating-point effects on the noise.
        """
        with arithmetic(self.precision):
            taps = self._pass(inputs, loss)
            layers = {tapped.layer: gradients_of(tapped) for tapped in taps}
            weights = weigh if isinstance(weigh, Tensor) else weigh(self._norms(list(layers.values())))
            weights = not_above(weights.to(total.dtype), self.precision)
            for layer, gradients in layers.items():
                for piece in gradients.pieces:
                    names = [f"{self._names[layer]}.{name}".lstrip(".") for name in piece.names]
                    piece.add_weighted([total[self._flat.span(name)] for name in names], weights)

    def norms(self, inputs: tuple[Tensor | None, ...], loss: Loss) -> Tensor:
        """Upper bounds (N,) of the norms of the per-example gradients, as ``add`` weighs them; NaN for a broken one.

        Privacy: private; nothing is summed.
        """
        with arithmetic(self.precision):
            return self._norms([gradients_of(tapped) for tapped in self._pass(inputs, loss)])

    def check_examples_apart(self, inputs: tuple[Tensor | None, ...], others: tuple[Tensor | None, ...]) -> None:
        """Refuse a network that mixes rows, by exchanging each row of ``inputs`` in turn for that of ``others``.

        On the processor, where two passes over the same numbers agree in every bit; kernels of a card may not.
        """
        if self._flat.values.device.type != "cpu":
            network = copy.deepcopy(self._source).cpu().float()
            twin = PerExampleGradients(network, FlatParameters(network))
            twin.check_examples_apart(_on_processor(inputs), _on_processor(others))
            return
        before = self._seen(inputs)
        for row in range(len(next(part for part in inputs if part is not None))):
            pairs = zip(inputs, others, strict=True)
            check_rows_apart(before, self._seen(tuple(_with_row(part, other, row) for part, other in pairs)), row)
        self._check_slopes_apart(inputs)

    def _check_slopes_apart(self, inputs: tuple[Tensor | None, ...]) -> None:
        """Refuse a network in which the output of one example has a gradient at another one."""
        with arithmetic(self.precision):
            outputs = self._forward(inputs)
        places = {f"layer {self._names[layer]}": output for layer, (_, output, _) in self._taps.items()}
        self._taps.clear()
        for row, output in enumerate(outputs):
            slopes = torch.autograd.grad(output.sum(), list(places.values()), retain_graph=True, allow_unused=True)
            found = {name: slope for name, slope in zip(places, slopes, strict=True) if slope is not None}
            check_rows_apart(found, {name: torch.zeros_like(slope) for name, slope in found.items()}, row)

    def _seen(self, inputs: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
        """What reaches each layer, and the output."""
        with arithmetic(self.precision):
            outputs = self._forward(inputs)
        seen = {f"layer {self._names[layer]}": values for layer, (values, _, _) in self._taps.items()}
        self._taps.clear()
        return {**seen, "the output": outputs.detach()}

    def _tie_weights(self) -> None:
        if self.precision == "bf16":
            self._copy.to(torch.bfloat16)
            for parameter in self._copy.parameters():
                if parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        else:
            for own, source in zip(self._copy.parameters(), self._source.parameters(), strict=True):
                own.data = source.data

    def _prepare(self, layer: nn.Conv2d) -> None:
        if on_card(layer):
            return
        if by_patches(layer):
            layer.forward = partial(self._convolve, layer)  # type: ignore[method-assign]
        else:  # a kernel one wide has nothing to dilate, and torch 2.13 crashes on it where kernels lie channels last
            sides = zip(layer.dilation, layer.kernel_size, strict=True)
            layer.dilation = tuple(1 if side == 1 else dilation for dilation, side in sides)

    def _tap(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if layer in self._taps:
            raise InputError(
                f"per-example gradients: layer {self._names[layer]} is used twice in one pass; use two layers"
            )
        if not output.requires_grad:
            output.requires_grad_()
        self._taps[layer] = (inputs[0].detach(), output, output._version)

    def _convolve(self, layer: nn.Conv2d, images: Tensor) -> Tensor:
        output, self._patches[layer] = convolve(layer, images, self.precision)
        return output

    def _forward(self, inputs: tuple[Tensor | None, ...]) -> Tensor:
        self._taps.clear()
        with torch.enable_grad():
            outputs: Tensor = self._copy(*inputs)
        for layer, (values, output, version) in self._taps.items():
            if len(values) != len(outputs) or len(output) != len(outputs):
                raise InputError(
                    f"per-example gradients: layer {self._names[layer]} sees {len(values)} rows of {len(outputs)} "
                    "examples; keep examples in the first dimension"
                )
            if output._version != version:
                raise InputError(
                    f"per-example gradients: the output of layer {self._names[layer]} is changed in place; "
                    "use an activation without inplace=True"
                )
        return outputs

    def _pass(self, inputs: tuple[Tensor | None, ...], loss: Loss) -> list[Tapped]:
        """One forward and one backward pass; the backward pass computes no weight gradients."""
        with torch.enable_grad():
            losses = loss(self._forward(inputs))
        outputs = [output for _, output, _ in self._taps.values()]
        slopes = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        taps = [
            Tapped(layer, values, slope, self.precision, self._patches.get(layer), self._rows)
            for (layer, (values, _, _)), slope in zip(self._taps.items(), slopes, strict=True)
            if slope is not None
        ]
        self._taps.clear()
        self._patches.clear()
        return taps

    def _norms(self, layers: list[Gradients]) -> Tensor:
        """Bounds of the norms (N,) in float64, for all layers at once; NaN for an example that was not finite."""
        found = [piece.measure() for gradients in layers for piece in gradients.pieces]
        key = tuple((each.inexact, each.scaled) for each in found for _ in each.squared)
        if key not in self._margins:
            self._margins[key] = torch.tensor(key, dtype=torch.float64, device=self._flat.values.device)
        inexact, scaled = self._margins[key].T.unsqueeze(2)
        squared, spread = torch.cat([each.squared for each in found]), torch.cat([each.spread for each in found])
        norms = torch.addcmul(squared, inexact, spread).clamp(min=0).sqrt()
        norms = torch.linalg.vector_norm(torch.addcmul(norms, scaled, spread.sqrt()), dim=0)
        witnesses = [gradients.witness for gradients in layers if gradients.witness is not None]
        if not witnesses:
            return norms
        witness = torch.stack(witnesses).sum(dim=0)
        return norms + (witness - witness)  # zero, or NaN


def _on_processor(inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    moved = (None if part is None else part.cpu() for part in inputs)
    return tuple(part.float() if part is not None and part.is_floating_point() else part for part in moved)


def _with_row(part: Tensor | None, other: Tensor | None, row: int) -> Tensor | None:
    if part is None or other is None:
        return part
    changed = part.clone()
    changed[row] = other[row]
    return changed


_KNOWN = ", ".join(kind.__name__ for kind in RULES)


def check_modules(network: nn.Module) -> None:
    """Refuse, by name, layers that mix examples and layers whose gradient per example is not known.

    Privacy: if an example could move another one's gradient, clipping each would bound nothing.
    """
    owners: dict[int, str] = {}
    for name, module in network.named_modules():
        title = f"{name or 'network'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats):
            raise InputError(f"per-example gradients: {title} mixes the examples of a batch; use GroupNorm instead")
        parameters = list(module.parameters(recurse=False))
        if parameters and type(module) not in RULES:
            raise InputError(f"per-example gradients: {title} has parameters but no known rule; use {_KNOWN}")
        _check_options(module, title)
        for parameter in parameters:
            if id(parameter) in owners:
                raise InputError(
                    f"per-example gradients: {title} shares a parameter with {owners[id(parameter)]}; give it its own"
                )
            owners[id(parameter)] = title


def _check_options(module: nn.Module, title: str) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and module.padding_mode != "zeros":
        raise InputError(f"per-example gradients: {title} pads with {module.padding_mode!r}; use padding_mode='zeros'")
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        raise InputError(
            f"per-example gradients: {title} uses max_norm or scale_grad_by_freq, which mix the examples of a batch; "
            "leave both out"
        )


def check_rows_apart(before: dict[str, Tensor], after: dict[str, Tensor], row: int) -> None:
    """Refuse a network in which changing one example moved another; values by layer, from a pass before and after.

    Privacy: catches what has no parameters and so no name above: statistics over a batch, shuffled or folded rows.
    """
    for name, values in before.items():
        others = torch.arange(len(values)) != row
        same = after[name].shape == values.shape and torch.equal(
            after[name][others].nan_to_num(), values[others].nan_to_num()
        )
        if not same:
            raise InputError(
                f"per-example gradients: what reaches {name} mixes the examples of a batch; "
                "treat every example for itself"
            )


_ROUND = 32


class FlatParameters:
    """Moves a network's parameters into ``values`` and leaves views of it in the network.

    Kernels of convolutions lie channels last in it: the order in which patches give their gradients, and the fast
    layout on a graphics card. Every parameter begins at a round place, for aligned access; what lies between them is
    unused. Loading a state dict writes through the views; moving the network elsewhere breaks them.
    """

    def __init__(self, network: nn.Module) -> None:
        parameters = dict(network.named_parameters())
        if not parameters:
            raise InputError("per-example gradients: the network has no parameters, so there is nothing to train")
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
        if len(kinds) > 1:
            raise InputError(f"per-example gradients: parameters of {len(kinds)} types or devices; use one for all")
        dtype, device = kinds.pop()
        self._spans: dict[str, slice] = {}
        size = 0
        for name, parameter in parameters.items():
            self._spans[name] = slice(size, size + parameter.numel())
            size += math.ceil(parameter.numel() / _ROUND) * _ROUND
        self.values = torch.zeros(size, dtype=dtype, device=device)
        for name, parameter in parameters.items():
            view = shaped(self.values[self._spans[name]], parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view

    def span(self, name: str) -> slice:
        """Where a parameter lies in ``values`` and in every flat gradient."""
        return self._spans[name]

    def zeros(self) -> Tensor:
        """A flat gradient of zeros."""
        return torch.zeros_like(self.values)


def shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    """A part of a flat tensor in the shape of its parameter; kernels (out, in, rows, columns) lie channels last."""
    assert flat.numel() == math.prod(shape)
    if len(shape) != 4:
        return flat.view(shape)
    return flat.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
