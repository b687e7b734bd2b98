"""The certificate of the design document."""

from __future__ import annotations

from typing import Any

# The certificate of the design document, word for word but for the hash, the date and the versions.
AS_DESIGNED: dict[str, Any] = {
    "schema": 1,
    "method": "gs-wgan",
    "created": "2025-01-01T00:00:00+00:00",
    "software": {"understudy": "0.1.0", "torch": "2.13.0"},
    "guarantees": [
        {
            "kind": "dp",
            "epsilon": 9.03,
            "delta": 1e-05,
            "unit": "record",
            "adjacency": "add-remove",
            "viewer": "public",
            "accountant": "pld",
        }
    ],
    "events": [
        {
            "mechanism": "gaussian",
            "noise_multiplier": 0.85,
            "sensitivity": "2C",
            "sampling": {"kind": "routed", "subsets": 1000},
            "count": 640000,
            "executed": 640000,
        }
    ],
    "assumed_public": ["nominal_records: 60000", "classes: 10", "shape: 1x28x28", "range: 0..255"],
    "randomness": "os-entropy",
    "runs_on_this_data": 1,
    "generator_sha256": "0" * 64,
}
