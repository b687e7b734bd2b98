"""A tiny federation: three clients with 8x8 images, a handful of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.data.domain import source_options
from understudy.federated.client import Client, Membership
from understudy.federated.contract import Contract
from understudy.federated.gs_wgan import FederatedConfig, GsWganFederated, federation_contract
from understudy.methods.config import build_config
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Plan

BUDGET = Budget(epsilon=10, delta=1e-5)
GENEROUS = Budget(epsilon=1e5, delta=1e-5)
CLIENTS, CLASSES = 3, 3


def tiny_config(**changes: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run that takes about a second: four rounds of 12 queries."""
    groups: dict[str, dict[str, Any]] = {
        "privacy": {
            "noise_multiplier": 10.0,
            "queries": 48,
            "queries_per_round": 12,
            "embedding_noise_multiplier": 10.0,
        },
        "method": {
            "steps_per_round": 2,
            "pool": 8,
            "critics": {"batch": 4, "width": 8, "warm_iterations": 1, "rounds": 1},
            "generator": {"width": 2, "latent": 2},
            "embedding": {"frequencies": 8, "steps": 2, "batch": 12},
        },
        "runtime": {"device": "cpu"},
    }
    return {name: {**group, **changes.get(name, {})} for name, group in groups.items()}


def federated_data(
    clients: int = CLIENTS, per_client: int = 10, *, labelled: bool = True, seed: int = 0
) -> ImageDataset:
    """Random 8x8 images of some clients."""
    random = np.random.default_rng(seed)
    records = clients * per_client
    images = random.integers(0, 256, (records, 8, 8), dtype=np.uint8)
    labels = random.integers(0, CLASSES, records) if labelled else None
    options = source_options(nominal_clients=clients)
    ids = np.repeat(np.arange(clients), per_client)
    return from_arrays(
        images, labels, client_ids=ids, records=records, classes=CLASSES if labelled else None, options=options
    )


def tiny_plan(data: ImageDataset | None = None, **changes: dict[str, Any]) -> Plan:
    config = build_config(FederatedConfig, tiny_config(**changes))
    return GsWganFederated().plan(config, (data or federated_data()).domain, BUDGET)


def tiny_contract(data: ImageDataset | None = None, **changes: dict[str, Any]) -> Contract:
    plan = tiny_plan(data, **changes)
    assert isinstance(plan.config, FederatedConfig)
    return federation_contract(plan.config, plan.domain)


def members(data: ImageDataset, client: int) -> ImageDataset:
    """The records of one client."""
    assert data.client_ids is not None
    return data.subset(np.flatnonzero(data.client_ids == client))


def make_client(
    folder: Path, contract: Contract, data: ImageDataset, number: int = 0, budget: Budget = GENEROUS
) -> Client:
    return Client(folder / f"client-{number}", contract, Membership(number, budget), members(data, number))


class LocalTransport:
    """Clients in this process, behind the same messages as remote ones.

    It hands each question to a function and its answer back; a client that raises or is None stays
    silent.
    """

    def __init__(self, clients: Sequence[Callable[[bytes], object] | None]) -> None:
        self._clients = clients

    def exchange(self, questions: Mapping[int, bytes]) -> Iterator[tuple[int, object]]:
        """Ask one client after the other."""
        for number, question in questions.items():
            client = self._clients[number]
            if client is None:
                continue
            try:
                answer = client(question)
            except Exception:  # a dead client is no reason to stop the others
                continue
            yield number, answer
