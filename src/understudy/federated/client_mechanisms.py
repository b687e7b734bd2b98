"""Answers to messages: what a client of a federation sends back, sanitized by itself and recorded before it leaves.

And the sum of one such answer from each client, as the server makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from understudy.files import read_tensors, write_tensors
from understudy.privacy.mechanisms import GaussianMechanism, GaussianSum


class GaussianMessages(GaussianMechanism):
    """Noisy answers to the queries of one message: clip(row, C) + Normal(0, (2 * C * noise_multiplier)^2) in each row.

    Privacy: replacing the client's data moves an answer by at most 2C (replace-one, sensitivity "2C"); every answered
    row is one execution, without any sampling, because the server knows whom it asks.
    """

    allowed_sampling = ("none",)
    sensitivity = "2C"

    def answer(self, rows_private: Tensor, answered: int, key: str) -> Tensor | None:
        """Sanitize the first ``answered`` rows; the rows behind them are zero plus the same noise and cost nothing.

        None where the message of that ``key`` was answered before: noise is never drawn twice for one message.

        Privacy: the executions are on disk, under the key of the message, before any noise is drawn. The shape of the
        result does not depend on ``answered``.
        """
        event = self.account.spend_for(key, answered)
        if event is None:
            return None
        rows_private = rows_private.clone()
        rows_private[answered:] = 0
        return self._noisy(self._clip(rows_private), 2 * self.clip * event.noise_multiplier).float()


class GaussianParts(GaussianSum):
    """The sum of one row from each client: sum of clip(row, C) + noise of deviation C * noise_multiplier, in parts.

    Each of the K clients clips its own row and adds noise of deviation C * noise_multiplier / sqrt(K) before it sends
    it; independent normal noise adds up in variance.

    Privacy: a client more or less moves the sum by at most C (its place stays and sends noise): for whoever sees the
    sum, one Gaussian of the stated multiplier (add-remove, sensitivity "C"). Whoever sees the parts is in
    ``viewers``.
    """

    def lost_part(self, values: int) -> Tensor:
        """What stands for the row of a client that sent none: zero plus its part of the noise."""
        parts = self.account.template.noise_parts or 1
        return self._noisy(torch.zeros(values), self.clip * self.account.template.noise_multiplier / math.sqrt(parts))

    def collect(self, ask: Callable[[], Tensor], path: Path) -> Tensor:
        """The sum of rows that clients sanitized themselves, kept in ``path``.

        Privacy: recorded before the first client is asked. After a crash the clients are asked the same again and send
        the same bytes, so nothing more is spent.
        """
        if self.account.reserved == 0:
            self.account.spend(1)
        if not path.exists():
            write_tensors(path, {"total_dp": ask()})
        return read_tensors(path)[0]["total_dp"]
