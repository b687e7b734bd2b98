"""The critic bank: K critics as stacked parameters, any of them trained side by side, and asked without being changed.

Critic k sees subset k, its own randomness and generated images, and nothing else: every operation here acts on the rows
of one stacked tensor independently, so one record reaches one critic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from understudy.configs import Config, Count, Precision, Share, Strict
from understudy.engines.critics.layers import estimate, write_normalised
from understudy.engines.critics.layout import CriticLayout
from understudy.engines.critics.network import (
    CriticReport,
    PassShape,
    StackedPass,
    bytes_per_critic,
    loss_and_gradients,
    selectors,
)
from understudy.errors import InputError
from understudy.models.critic import CriticBatch, CriticConfig, CriticLossConfig

Rows = slice | Sequence[int]  # which critics
INITIAL_POWER_ITERATIONS = 5
_CPU_WORKSPACE = 2**28  # small enough to stay near the caches
_CUDA_WORKSPACE = 2**34


class AdamConfig(Config):
    """Adam, as the GS-WGAN paper sets it."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    first_decay: Share = 0.5
    second_decay: Share = 0.9
    eps: Annotated[float, Field(gt=0)] = 1e-8


class CriticBankConfig(Config):
    """Method settings of a bank: the critic, how many of them, their loss and their optimiser."""

    critic: CriticConfig
    critics: Count
    loss: CriticLossConfig = CriticLossConfig()
    adam: AdamConfig = AdamConfig()


class CriticBankOptions(Strict):
    """Runtime settings: they change speed, memory and rounding, never the privacy.

    ``precision`` is that of the matrix products; parameters, moments, spectral norms and penalties stay in fp32.
    ``chunk`` is the most critics handled at once (None: as many as a share of the free memory holds).
    """

    precision: Precision = "fp32"
    chunk: Count | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and of the weights that multiply them."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def capacity(self, bytes_each: int, device: torch.device) -> int:
        """How many critics to handle at once when each needs ``bytes_each`` of working memory.

        Privacy: decided from the machine and public shapes, never from what is free: one record more must not change
        how the other critics are computed.
        """
        if self.chunk is not None:
            return self.chunk
        if device.type != "cuda":
            return max(1, _CPU_WORKSPACE // bytes_each)
        total = torch.cuda.get_device_properties(device).total_memory
        return max(1, min(total // 4, _CUDA_WORKSPACE) // bytes_each)

    @contextmanager
    def products(self) -> Iterator[None]:
        """Large matrix products inside run at this precision; the setting before is put back afterwards."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


class CriticBank:
    """K critics, their Adam moments and their spectral-norm vectors.

    ``active`` (K,) says whose subset holds any record; an inactive critic is never changed and answers with zeros.
    """

    def __init__(
        self,
        config: CriticBankConfig,
        runtime: CriticBankOptions | None = None,
        active: Tensor | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> None:
        self.config, self.runtime, self.device = config, runtime or CriticBankOptions(), torch.device(device)
        self.layout = CriticLayout(config.critic)
        self.parameters = self.layout.initial(config.critics, generator, self.device)
        self.first_moment = torch.zeros_like(self.parameters)
        self.second_moment = torch.zeros_like(self.parameters)
        self.steps = torch.zeros(config.critics, device=self.device)
        self.vectors = torch.randn(config.critics, self.layout.vectors, generator=generator, device=self.device)
        for _ in range(INITIAL_POWER_ITERATIONS):
            self.vectors = torch.cat(estimate(self.layout, self.parameters, self.vectors, training=True).left, 1)
        self.active = torch.ones(config.critics, dtype=torch.bool, device=self.device)
        if active is not None:
            self.active.copy_(active)
        self._active_rows: list[bool] = self.active.tolist()
        self._passes: dict[tuple[int, bool], StackedPass] = {}
        self._limits: dict[int, int] = {}

    # --- training

    @torch.no_grad()
    def train_step(self, critics: Rows, batch: CriticBatch, generator: torch.Generator | None = None) -> CriticReport:
        """One WGAN-GP Adam step of the named critics, each on its own images.

        ``critics`` is a slice (fastest: no copies of parameters) or a sequence of distinct indices; the batch's tensors
        are (k, batch, ...) in that order. Fake images and labels without the critic axis are shared by all.

        Privacy: no output of this may be released; ``critics`` must come from a public schedule.
        """
        rows = self._rows(critics)
        batch = _with_critic_axis(batch, len(rows))
        if batch.mix is None:
            shape = batch.real_images.shape[:2]
            batch = _replaced_mix(batch, torch.rand(shape, generator=generator, device=self.device))
        images = 3 * batch.real_images.shape[1]
        reports = [self._train_rows(rows[part], _part(batch, part)) for part in self._parts(len(rows), images)]
        if len(reports) == 1:
            return reports[0]
        joined = [torch.cat([getattr(report, name) for report in reports]) for name in ("loss", "gap", "penalty")]
        return CriticReport(*joined)

    def _train_rows(self, rows: Sequence[int], batch: CriticBatch) -> CriticReport:
        """Trains critics that fit into the working memory together."""
        index = self._index(rows)
        flat, vectors, active = self.parameters[index], self.vectors[index], self.active[index]
        stacked = self._pass(len(rows), 3 * batch.real_images.shape[1], training=True)
        spectral = estimate(self.layout, flat, vectors, training=True)
        write_normalised(self.layout, flat, spectral, stacked.weights)
        with self.runtime.products():
            gradients, report = loss_and_gradients(stacked, spectral, batch, active, self.config.loss)
        self.vectors[index] = torch.where(active.unsqueeze(1), torch.cat(spectral.left, 1), vectors)
        self._adam(rows, gradients)
        return report

    def _adam(self, rows: Sequence[int], gradients: Tensor) -> None:
        """One fused Adam update of the active rows, in place, each with its own step count."""
        index = self._index(rows)
        self.steps[index] += self.active[index]
        chosen = [position for position, row in enumerate(rows) if self._active_rows[row]]
        if not chosen:
            return
        stacked = (self.parameters, gradients, self.first_moment, self.second_moment, self.steps)
        lists = []
        for tensor in stacked:
            if tensor is gradients or isinstance(index, slice):
                views = (tensor if tensor is gradients else tensor[index]).unbind(0)
                lists.append([views[position] for position in chosen])
            else:
                lists.append([tensor[rows[position]] for position in chosen])
        parameters, slopes, first, second, steps = lists
        adam = self.config.adam
        torch._fused_adam_(
            parameters, slopes, first, second, [], steps,
            lr=adam.learning_rate, beta1=adam.first_decay, beta2=adam.second_decay, eps=adam.eps,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip

    # --- queries

    @torch.no_grad()
    def query(self, images: Tensor, labels: Tensor | None, routing: Tensor) -> Tensor:
        """Gradients (queries, channels, rows, columns) of -D_k(x), image by image, k being its routed critic; in fp32.

        Privacy: reads critics and changes none: evaluation mode, spectral vectors as they are, no counter, no
        optimiser. Answers come in query order and each depends on its own critic alone; shapes do not depend on the
        routing. They are not sanitized: clip and noise each row before any use.
        """
        answers = []
        for part in self._parts(len(routing), 1):
            index = routing[part]
            own = labels[part].unsqueeze(1) if labels is not None else None
            answers.append(self._slopes(index, images[part].unsqueeze(1), own).squeeze(1))
        return torch.cat(answers)

    @torch.no_grad()
    def input_gradients(self, critics: Rows, images: Tensor, labels: Tensor | None) -> Tensor:
        """The same gradients for several images (k, images, ...) of each named critic: what warm start needs."""
        rows = self._rows(critics)
        answers = []
        for part in self._parts(len(rows), images.shape[1]):
            own = labels[part] if labels is not None else None
            answers.append(self._slopes(self._index(rows[part]), images[part], own))
        return torch.cat(answers)

    @torch.no_grad()
    def scores(self, critics: Rows, images: Tensor, labels: Tensor | None) -> Tensor:
        """D_k(x) in fp32, (k, images), for several images (k, images, ...) of each named critic; changes no critic.

        Privacy: private like the critics; row k depends on critic k alone. An inactive critic scores zero.
        """
        rows = self._rows(critics)
        answers = []
        for part in self._parts(len(rows), images.shape[1]):
            index = self._index(rows[part])
            stacked, chosen = self._placed(index, images[part], labels[part] if labels is not None else None)
            with self.runtime.products():
                products = stacked.forward()
            bias = self.layout.head_bias(stacked.weights).float().unsqueeze(1)
            answers.append(((products * chosen).sum(2) + bias) * self.active[index].unsqueeze(1))
        return torch.cat(answers)

    def _placed(self, index: slice | Tensor, images: Tensor, labels: Tensor | None) -> tuple[StackedPass, Tensor]:
        """A pass in evaluation mode with weights and images in place, and the head's rows that score each image."""
        flat, vectors = self.parameters[index], self.vectors[index]
        stacked = self._pass(images.shape[0], images.shape[1], training=False)
        write_normalised(self.layout, flat, estimate(self.layout, flat, vectors, training=False), stacked.weights)
        stacked.set_images(images)
        return stacked, selectors(images.shape[:2], labels, self.layout.head_rows, self.device)

    def _slopes(self, index: slice | Tensor, images: Tensor, labels: Tensor | None) -> Tensor:
        stacked, chosen = self._placed(index, images, labels)
        with self.runtime.products():
            stacked.forward()
            stacked.backward(chosen * -self.active[index].view(-1, 1, 1).float())
            return stacked.input_slopes()

    # --- rows, memory, state

    def _rows(self, critics: Rows) -> Sequence[int]:
        """The named critics as distinct indices; a contiguous slice stays a range."""
        if isinstance(critics, slice):
            return range(*critics.indices(self.config.critics))
        rows = [int(row) for row in critics]
        if len(set(rows)) != len(rows):
            raise InputError("critics: an index appears twice; name each critic once per step")
        return rows

    def _index(self, rows: Sequence[int]) -> slice | Tensor:
        """A slice (views) where the rows are contiguous, else indices on the device (copies)."""
        if isinstance(rows, range) and rows.step == 1:
            return slice(rows.start, rows.stop)
        return torch.tensor(list(rows), device=self.device)

    def _parts(self, count: int, images: int) -> Iterator[slice]:
        """Splits ``count`` critics into near-equal parts that fit into the working memory."""
        capacity = self._limit(images)
        size = -(-count // -(-count // capacity)) if count else 1
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def _limit(self, images: int) -> int:
        """How many critics to handle at once; decided when a pass of this size is first needed."""
        if images not in self._limits:
            bytes_each = bytes_per_critic(self.layout, images, self.runtime.dtype)
            self._limits[images] = self.runtime.capacity(bytes_each, self.device)
        return self._limits[images]

    def _pass(self, critics: int, images: int, *, training: bool) -> StackedPass:
        """Working buffers for a pass, kept from step to step; they hold nothing that a later pass reads."""
        key = (images, training)
        held = self._passes.get(key)
        if held is None or held.shape.critics < critics:
            self._passes.pop(key, None)
            shape = PassShape(critics, images, self.runtime.dtype, self.device, training)
            held = self._passes[key] = StackedPass(self.layout, shape)
        return held.first(critics)

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, as plain tensors for a checkpoint in the private run folder."""
        names = ("parameters", "first_moment", "second_moment", "steps", "vectors", "active")
        return {name: getattr(self, name) for name in names}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes over a saved state; its shapes must be those of this bank."""
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape:
                found = tuple(state[name].shape) if name in state else "nothing"
                raise InputError(f"critic bank: {name} is {found}, but {tuple(own.shape)} is needed; wrong checkpoint?")
            own.copy_(state[name])
        self._active_rows = self.active.tolist()


def _with_critic_axis(batch: CriticBatch, critics: int) -> CriticBatch:
    """The batch with shared fake images and labels given to every critic (as views)."""
    fakes, labels = batch.fake_images, batch.fake_labels
    if fakes.dim() == 4:
        fakes = fakes.expand(critics, *fakes.shape)
    if labels is not None and labels.dim() == 1:
        labels = labels.expand(critics, *labels.shape)
    if batch.real_images.shape != fakes.shape or len(fakes) != critics:
        found = f"real {tuple(batch.real_images.shape)}, fake {tuple(batch.fake_images.shape)}"
        raise InputError(f"critic batch: {found}, but {critics} critics are trained; one row per critic is needed")
    return CriticBatch(batch.real_images, fakes, batch.real_labels, labels, batch.mix)


def _replaced_mix(batch: CriticBatch, mix: Tensor) -> CriticBatch:
    return CriticBatch(batch.real_images, batch.fake_images, batch.real_labels, batch.fake_labels, mix)


def _part(batch: CriticBatch, part: slice) -> CriticBatch:
    """The rows of some critics."""
    fields = (batch.real_images, batch.fake_images, batch.real_labels, batch.fake_labels, batch.mix)
    return CriticBatch(*(field[part] if field is not None else None for field in fields))  # type: ignore[arg-type]
