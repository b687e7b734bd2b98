"""Answers to messages: what a client of a federation sends back, sanitized by itself and recorded before it leaves."""

from __future__ import annotations

from torch import Tensor

from understudy.privacy.mechanisms import GaussianMechanism


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
