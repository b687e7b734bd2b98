"""Builds small releases without training, and changes their files as somebody with bad intentions would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from understudy.data.domain import Domain
from understudy.files import file_sha256
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.privacy.certificate import NOT_COVERED
from understudy.privacy.randomness.streams import OS_ENTROPY
from understudy.release.release import Release, build_release

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 1.0, "sensitivity": "C", "count": 1}
CONFIG = {"privacy": {"noise_multiplier": 1.0}, "method": {"steps": 5, "width": 4, "latent": 3}}  # plans GAUSSIAN
EPSILON, DELTA = 4.3772, 1e-5  # of GAUSSIAN: 4.377178


def make_release(
    channels: int = 1, classes: int | None = 4, class_names: tuple[str, ...] | None = None, **fields: Any
) -> Release:
    """A release of a random generator; ``fields`` replace those of its certificate."""
    torch.manual_seed(0)
    shape = (channels, 8, 8)
    domain = Domain(shape=shape, classes=classes, class_names=class_names, nominal_records=1000)
    generator = build_generator(GeneratorConfig(shape=shape, classes=classes, width=4, latent=3))
    certificate = {
        "guarantees": [{"epsilon": EPSILON, "delta": DELTA}],
        "events": [GAUSSIAN | {"planned": 1, "executed": 1}],
        "assumed_public": domain.assumed_public(),
        "randomness": OS_ENTROPY,
        "runs_on_this_data": 1,
        "not_covered": NOT_COVERED,
    }
    return build_release("dp-merf", generator, domain, CONFIG, certificate | fields)


def edit_config(release: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the config of a release and let its certificate name the new one."""
    edit_json(release / "config.json", change)
    digest = file_sha256(release / "config.json")
    edit_json(release / "certificate.json", lambda certificate: certificate.update(config_sha256=digest))


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    put_json(path, content)


def put_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, laid out as releases write theirs."""
    path.write_text(json.dumps(content, indent=2) + "\n")
