"""The declared domain of a data set: everything about it that is assumed public, and nothing read from its records."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Domain(BaseModel):
    """Shape, classes, value range and nominal size, as declared by the data owner.

    Privacy: these values enter sampling rates, normalisers and model shapes without noise, so they must be public. They
    are listed in every certificate under ``assumed_public`` and never compared with the true number of records.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    shape: tuple[int, int, int]  # channels, height, width
    classes: Annotated[int, Field(ge=1)] | None = None  # None: unlabelled
    class_names: tuple[str, ...] | None = None
    value_range: tuple[float, float] = (0.0, 255.0)
    nominal_records: Annotated[int, Field(ge=1)]
    nominal_clients: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Domain:
        channels, height, width = self.shape
        if channels not in (1, 3):
            raise ValueError(f"shape: {channels} channels; images are grey (1) or RGB (3)")
        if not (8 <= height <= 64 and 8 <= width <= 64):
            raise ValueError(f"shape: {height}x{width}; sizes from 8x8 to 64x64 are supported")
        if self.value_range[0] >= self.value_range[1]:
            raise ValueError(f"value_range: {self.value_range} is empty")
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise ValueError(f"class_names: {len(self.class_names)} names, but classes={self.classes} was declared")
        return self

    @property
    def labelled(self) -> bool:
        """Whether records carry a class."""
        return self.classes is not None

    def assumed_public(self) -> list[str]:
        """The statements that a certificate lists as assumptions."""
        channels, height, width = self.shape
        low, high = self.value_range
        statements = [
            f"nominal_records: {self.nominal_records}",
            f"classes: {self.classes if self.labelled else 'unlabelled'}",
            f"shape: {channels}x{height}x{width}",
            f"range: {low:g}..{high:g}",
        ]
        if self.class_names is not None:
            statements.append("class names: " + ", ".join(self.class_names))
        if self.nominal_clients is not None:
            statements.append(f"nominal_clients: {self.nominal_clients}")
        return statements
