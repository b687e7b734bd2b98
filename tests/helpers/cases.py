"""Tiny settings with which the tests train every method in about a second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from understudy.methods.registry import method_names
from understudy.privacy.budget import Budget

BUDGET = Budget(epsilon=10, delta=1e-5)
RECORDS, CLASSES = 40, 3


@dataclass(frozen=True)
class Case:
    """How the tests train one method: in about a second, on 40 images of 8x8 pixels, within ``BUDGET``."""

    name: str
    privacy: dict[str, Any]  # with a noise multiplier of about 10: nothing to calibrate, and accounting is quick
    method: dict[str, Any]
    public_values: frozenset[str]  # what it reports while it runs; every name here was judged to be public
    runtime: dict[str, list[Any]] = field(default_factory=dict)  # its own runtime settings, with values to try
    clients: int | None = None  # to whom the records are dealt out, for a federated method
    teacher: dict[str, Any] | None = None  # that of a case with a share for one; it needs labels

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of data that it can be trained on."""
        return ("labelled", "unlabelled", "rgb") if self.teacher is None else ("labelled", "rgb")

    def config(self, **changes: dict[str, Any]) -> dict[str, Any]:
        """The config of a tiny run, with some settings changed: ``config(privacy={"noise_multiplier": 1.0})``."""
        groups = {"privacy": self.privacy, "method": self.method, "runtime": {"device": "cpu"}}
        groups |= {} if self.teacher is None else {"teacher": self.teacher}
        return {name: {**group, **changes.get(name, {})} for name, group in groups.items()}


_GS_WGAN = Case(
    "gs-wgan",
    privacy={
        "noise_multiplier": 10.0,
        "subsets": 4,
        "queries": 32,
        "embedding_share": 0.05,
        "embedding_noise_multiplier": 10.0,
    },
    method={
        "queries_per_step": 8,
        "critics": {"per_step": 3, "batch": 4, "width": 8, "warm_iterations": 1, "rounds": 1},
        "generator": {"width": 2, "latent": 2},
        "embedding": {"frequencies": 16, "steps": 2, "batch": 12},
    },
    public_values=frozenset({"contrast", "answers", "epsilon_spent"}),
)

_DPGAN = Case(
    "dpgan",
    privacy={
        "noise_multiplier": 10.0,
        "batch": 8,
        "steps": 4,
        "embedding_share": 0.05,
        "embedding_noise_multiplier": 10.0,
    },
    method={
        "width": 2,
        "latent": 2,
        "head_start": 1,
        "discriminator_steps": "adaptive",
        "schedule": {"grace": 1},
        "embedding": {"frequencies": 16, "steps": 2, "batch": 12},
    },
    public_values=frozenset(
        {"discriminator_steps", "generator_steps", "generator_loss", "accuracy_on_fakes", "epsilon_spent"}
    ),
)

_BDP_GAN = replace(
    _DPGAN,
    name="bdp-gan",
    method={**_DPGAN.method, "discriminator_steps": 1, "bayesian": {"pairs": 4, "orders": [1, 2, 8]}},
)

_DP_SINKHORN = Case(
    "dp-sinkhorn",
    privacy={
        "noise_multiplier": 10.0,
        "batch": 8,
        "steps": 4,
        "embedding_share": 0.05,
        "embedding_noise_multiplier": 10.0,
    },
    method={
        "transport": {"cells": 2, "images": 3, "iterations": 3},
        "generator": {"width": 2, "latent": 2},
        "embedding": {"frequencies": 16, "steps": 2, "batch": 12},
    },
    public_values=frozenset({"contrast", "epsilon_spent"}),
)

_TEACHERS = Case(
    "datalens",
    privacy={"noise_multiplier": 10.0, "teachers": 4, "queries": 12, "top": 5},
    method={
        "queries_per_step": 3,
        "teachers": {"per_step": 3, "batch": 4, "width": 8, "warm_iterations": 1},
        "generator": {"width": 2, "latent": 2, "output": "sigmoid"},  # one this small that is cut off may stay black
        "embedding": {"frequencies": 16, "steps": 2, "batch": 12},
    },
    public_values=frozenset({"contrast", "queries", "kept", "epsilon_spent"}),
)

_DP_DIFFUSION = Case(
    "dp-diffusion",
    privacy={
        "noise_multiplier": 10.0,
        "batch": 8,
        "steps": 4,
        "embedding_share": 0.05,
        "embedding_noise_multiplier": 10.0,
    },
    method={
        "widths": [8, 8],
        "blocks": 1,
        "draws": 2,
        "embedding": {"frequencies": 16, "steps": 2, "batch": 12},
        "warm_up": {"images": 20, "steps": 2, "batch": 4},
        "sampler": {"steps": 3, "churn": 1.0},
    },
    public_values=frozenset({"denoising_steps", "epsilon_spent"}),
)

CASES = {
    "datalens": _TEACHERS,
    "datalens with drawn signs, a threshold and an embedding": replace(
        _TEACHERS,
        privacy={**_TEACHERS.privacy, "embedding_share": 0.05, "embedding_noise_multiplier": 10.0},
        method={
            **_TEACHERS.method,
            "stochastic": True,
            "threshold": 0.1,
            "generator": {"kind": "resnet", "width": 2, "latent": 2},
        },
    ),
    "dp-diffusion": _DP_DIFFUSION,
    "dp-diffusion from central images": replace(
        _DP_DIFFUSION,
        privacy={
            "noise_multiplier": 10.0,
            "batch": 8,
            "steps": 4,
            "start": "central-images",
            "central_images": {"queries": 2, "noise_multiplier": 10.0},
        },
        method={
            **_DP_DIFFUSION.method,
            "draws": 1,
            "mirrored": True,
            "sampler": {"steps": 3, "churn": 1.0, "autoguidance": 1.0},
        },
    ),
    "g-pate": replace(
        _TEACHERS,
        name="g-pate",
        privacy={"noise_multiplier": 10.0, "teachers": 4, "queries": 12, "projections": 3},
        public_values=frozenset({"contrast", "queries", "confident", "epsilon_spent"}),
    ),
    "pate-gan": replace(
        _TEACHERS,
        name="pate-gan",
        privacy={"noise_multiplier": 10.0, "teachers": 4, "queries": 12},
        method={**_TEACHERS.method, "student": {"width": 8, "steps": 2, "memory": 2}},
        public_values=frozenset({"contrast", "queries", "real_votes", "epsilon_spent"}),
    ),
    "dp-merf": Case(
        "dp-merf",
        privacy={"noise_multiplier": 10.0},
        method={"frequencies": 16, "steps": 4, "batch": 12, "latent": 2, "width": 4},
        public_values=frozenset({"loss", "epsilon_spent"}),
    ),
    "dpgan": _DPGAN,
    "dpgan with a fixed number of steps, no embedding and an average": replace(
        _DPGAN,
        privacy={**_DPGAN.privacy, "embedding_share": 0.0, "embedding_noise_multiplier": None},
        method={**_DPGAN.method, "discriminator_steps": 2, "average_decay": 0.5, "head_start": 0},
    ),
    "bdp-gan": _BDP_GAN,
    "bdp-gan without its accountant, with a bound on the weights and the networks of dpgan": replace(
        _BDP_GAN,
        privacy={**_BDP_GAN.privacy, "embedding_share": 0.0, "embedding_noise_multiplier": None},
        method={**_BDP_GAN.method, "bayesian": {"enabled": False}, "weight_bound": 0.1, "networks": "dpgan"},
    ),
    "dp-cgan": Case(
        "dp-cgan",
        privacy={"noise_multiplier": 10.0, "batch": 8, "steps": 4},
        method={"width": 2, "latent": 2},
        public_values=_DPGAN.public_values,
    ),
    "dp-hp": Case(
        "dp-hp",
        privacy={"noise_multiplier": 10.0},
        method={"order": 3, "groups": 5, "group_order": 2, "steps": 4, "batch": 12, "latent": 2, "width": 4},
        public_values=frozenset({"loss", "epsilon_spent"}),
    ),
    "dp-merf-ae": Case(
        "dp-merf-ae",
        privacy={"noise_multiplier": 10.0, "batch": 8, "steps": 2, "embedding_noise_multiplier": 10.0},
        method={"autoencoder": {"code": 2, "width": 2}, "embedding": {"frequencies": 16, "steps": 2, "batch": 12}},
        public_values=frozenset({"autoencoder_steps", "loss", "epsilon_spent"}),
    ),
    "dp-sinkhorn": _DP_SINKHORN,
    "dp-sinkhorn in one block with a label cost": replace(
        _DP_SINKHORN,
        privacy={**_DP_SINKHORN.privacy, "embedding_share": 0.0, "embedding_noise_multiplier": None},
        method={**_DP_SINKHORN.method, "transport": {"cells": 1, "images": 6, "iterations": 3, "label_cost": 0.5}},
    ),
    "gs-wgan": _GS_WGAN,
    "dp-cgan as published": Case(
        "dp-cgan",
        privacy={"noise_multiplier": 10.0, "batch": 8, "steps": 4},
        method={"networks": "perceptron", "width": 4, "latent": 3, "optimiser": "descent", "last_rate": 0.1},
        public_values=_DPGAN.public_values,
    ),
    "gs-wgan as published": replace(
        _GS_WGAN,
        privacy={**_GS_WGAN.privacy, "embedding_share": 0.0},
        method={  # a generator this small whose output is cut off may be black from the start
            **_GS_WGAN.method,
            "mode": "paper",
            "generator": {"kind": "resnet", "width": 2, "latent": 2, "latent_law": "bernoulli", "output": "sigmoid"},
        },
    ),
    "gs-wgan in low frequencies with two queries for an image": replace(
        _GS_WGAN, method={**_GS_WGAN.method, "low_frequencies": [2, 5], "queries_per_point": 2}
    ),
}


def with_teacher(case: Case, **teacher: Any) -> Case:
    """A case with a teacher beside its generator, of four steps."""
    privacy = {"teacher_share": 0.2, "teacher_steps": 4, "teacher_noise_multiplier": 10.0}
    features = {} if "features" in teacher else {"directions": 2}
    return replace(case, privacy={**case.privacy, **privacy}, teacher={**features, **teacher})


# Every method with a teacher, for `make test-full`: it does the same beside all of them (see test_teacher.py).
TAUGHT = {
    **{f"{name} with a teacher": with_teacher(case) for name, case in CASES.items() if name == case.name},
    "dp-merf with a network as its teacher": with_teacher(CASES["dp-merf"], kind="network", width=2),
    "dp-merf with a teacher on patches": with_teacher(CASES["dp-merf"], features="patches", filters=3, mirrored=True),
}

# Methods without privacy: no budget, no events, no guarantee. They have tests of their own (test_not_private.py).
NOT_PRIVATE = {
    "gan": Case(
        "gan",
        privacy={"batch": 8, "steps": 4},
        method={"width": 2, "latent": 2},
        public_values=frozenset({"discriminator_steps", "generator_steps", "generator_loss", "accuracy_on_fakes"}),
    )
}

# Methods that need data with clients. What holds for every method holds for their simulations; the rest is in
# tests/federated.
FEDERATED = {
    "gs-wgan-federated": Case(
        "gs-wgan-federated",
        privacy={
            "noise_multiplier": 10.0,
            "queries": 48,
            "queries_per_round": 12,
            "embedding_share": 0.05,
            "embedding_noise_multiplier": 10.0,
        },
        method={
            "steps_per_round": 2,
            "pool": 8,
            "critics": {"batch": 4, "width": 8, "warm_iterations": 1, "rounds": 1},
            "generator": {"width": 2, "latent": 2},
            "embedding": {"frequencies": 8, "steps": 2, "batch": 12},
        },
        public_values=frozenset({"contrast", "rounds", "answers", "bytes_per_step", "epsilon_spent"}),
        clients=4,
    ),
    "fedavg-gan": Case(
        "fedavg-gan",
        privacy={"noise_multiplier": 10.0, "rounds": 4, "clients_per_round": 1.5},
        method={
            "generator_steps": 2,
            "batch": 8,
            "pool": 8,
            "critics": {"batch": 4, "width": 8, "rounds": 2},
            "generator": {"width": 2, "latent": 2},
        },
        public_values=frozenset({"contrast", "rounds", "bytes_per_step", "epsilon_spent"}),
        clients=4,
    ),
}

# Faults hit the loop that a method trains in, and several share one: the others are tried by `make test-full` alone.
LOOPS = ("dp-merf", "gs-wgan", "dpgan", "datalens")

ALL_CASES = [
    *CASES,
    *sorted(set(method_names()) - {case.name for case in CASES.values()} - set(NOT_PRIVATE) - set(FEDERATED)),
]
EVERY_CASE = [*ALL_CASES, *FEDERATED]


def case_of(case: str) -> Case:
    """An entry of ``CASES``, ``FEDERATED`` or ``TAUGHT``."""
    if case in FEDERATED or case in TAUGHT:
        return {**FEDERATED, **TAUGHT}[case]
    if case not in CASES:
        pytest.fail(
            f"method {case!r} is registered, but has no entry in CASES of tests/helpers/cases.py: add settings "
            f"with which it trains in about a second on {RECORDS} images of 8x8 pixels within {BUDGET}, and the public "
            "values that it reports; then every conformance test runs for it by itself"
        )
    return CASES[case]


def each_method(*values: Any) -> list[Any]:
    """Parameters for tests of faults: every method (and the same further values), those that share a loop as slow."""
    methods = [case for case in ALL_CASES if case == case_of(case).name]
    slow = {method: () if method in LOOPS else (pytest.mark.slow,) for method in methods}
    return [pytest.param(method, *values, marks=slow[method], id=method) for method in methods]
