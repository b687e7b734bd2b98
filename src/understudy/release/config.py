"""``config.json`` of a release: how to build its generator, the declared domain, and the public hyper-parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.files import read_object
from understudy.models.generator import AnnotatedGeneratorConfig, GeneratorConfig


class ReleaseConfig(BaseModel):
    """All of a release that is neither weights nor guarantee; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    method: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    generator: AnnotatedGeneratorConfig | GeneratorConfig
    domain: Domain
    method_config: dict[str, Any]

    @model_validator(mode="after")
    def _describe_the_same_images(self) -> ReleaseConfig:
        if (self.generator.shape, self.generator.classes) != (self.domain.shape, self.domain.classes):
            raise ValueError("generator and domain disagree on the shape or the classes of the images")
        return self

    def to_json(self) -> str:
        """The content of ``config.json``."""
        values = self.model_dump(mode="json", by_alias=True)
        try:
            return json.dumps(values, indent=2, allow_nan=False) + "\n"
        except ValueError as error:
            raise InputError(f"config: {error}; a release holds finite numbers only") from None


def make_config(**values: Any) -> ReleaseConfig:
    """A validated config; the first mistake is one sentence."""
    try:
        return ReleaseConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise InputError(f"config: {where}: {first['msg']}; this is not the config of a release (schema 1)") from None


def read_config(path: Path) -> ReleaseConfig:
    """The config of a release folder."""
    return make_config(**read_object(path, "config"))
