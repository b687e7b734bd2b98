"""For the tests of engines: what goes into a private sum."""

import pytest
from torch import Tensor

from understudy.privacy.mechanisms import GaussianMechanism


@pytest.fixture
def rows_added(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every clipped row that goes into a sum."""
    added: list[Tensor] = []
    clip = GaussianMechanism._clip

    def listening(mechanism: GaussianMechanism, rows_private: Tensor) -> Tensor:
        clipped = clip(mechanism, rows_private)
        added.extend(clipped)
        return clipped

    monkeypatch.setattr(GaussianMechanism, "_clip", listening)
    return added
