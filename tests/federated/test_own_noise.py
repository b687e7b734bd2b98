"""Noise of clients: each draws its own, whatever the contract they share."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch

from understudy.privacy.randomness.streams import NoiseStream

from .helpers import CLIENTS, federated_data, make_client, tiny_contract


def test_two_clients_never_share_their_noise(tmp_path, monkeypatch):
    """Every client is asked the same under one contract; no two of them, and no restarted one, draw the same noise."""
    data, drawn = federated_data(), []
    contract = tiny_contract(data)
    draw = NoiseStream.draw

    def remember(self, shape):
        noise = draw(self, shape)
        drawn[-1].append(noise.numpy().copy())
        return noise

    monkeypatch.setattr(NoiseStream, "draw", remember)
    for number in (*range(CLIENTS), 0):
        drawn.append([])
        client = make_client(tmp_path / f"home-{len(drawn)}", contract, data, number)
        client._mechanism.answer(torch.zeros(contract.limits.slots, contract.values), 1, "round 0")
    assert all(len(noise) == 1 for noise in drawn)
    for (first,), (second,) in combinations(drawn, 2):
        assert not np.isclose(first, second).all(axis=1).any()
