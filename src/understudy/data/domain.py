"""What a data owner declares: the domain, all of it assumed public and none of it read from the records, and options.

``Domain`` is what is known of a data set. ``SourceOptions`` are the rarer choices when reading one, and the common ones
are arguments of ``load``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from understudy.configs import SMALL_IMAGE, Classes, Count, Natural, Strict
from understudy.errors import InputError

Declaration = TypeVar("Declaration", bound=BaseModel)
DEEPEST_FOLDER = 8  # below the source; deeper ones are not entered
_YOUNG = ("nominal_people", "skip_broken")  # facts that are written only where they are declared


class Domain(BaseModel):
    """Shape, classes, value range and nominal size, as declared by the data owner.

    Privacy: these values enter sampling rates, normalisers and model shapes without noise, so they must be public. They
    are listed in every certificate under ``assumed_public`` and never compared with the true number of records.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    shape: tuple[int, int, int]  # channels, height, width
    classes: Classes | None = None  # None: unlabelled
    class_names: tuple[str, ...] | None = None
    value_range: tuple[float, float] = (0.0, 255.0)
    nominal_records: Count
    nominal_clients: Count | None = None
    nominal_people: Count | None = None
    skip_broken: Count | None = None  # how many files at most may be left out as broken

    @model_serializer(mode="wrap")
    def _without_undeclared(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A domain without people looks as it always did, so that older versions can read it."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key not in _YOUNG or value is not None}

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
    def values(self) -> int:
        """Numbers in an image: channels x height x width."""
        return math.prod(self.shape)

    @property
    def small(self) -> bool:
        """Whether images are so small that smaller networks and fewer steps will do."""
        return self.shape[1] * self.shape[2] <= SMALL_IMAGE

    @property
    def unit(self) -> Literal["record", "person"]:
        """Whom a central method protects: a person with all images where people are declared, else one image."""
        return "record" if self.nominal_people is None else "person"

    @property
    def nominal_units(self) -> int:
        """The declared number of units of a central method."""
        return self.nominal_people or self.nominal_records

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
        if self.nominal_people is not None:
            statements.append(f"nominal_people: {self.nominal_people}")
        if self.skip_broken is not None:
            statements.append(f"skip_broken: {self.skip_broken}")
        return statements


@dataclass(frozen=True)
class Place:
    """Where a source says something about a record: in a column, in the name of its file, or in a folder above it."""

    kind: Literal["column", "name", "folder"]
    column: str = ""
    pattern: re.Pattern[str] | None = None
    level: int = 0  # of a folder: 1 lies directly in the source


def parse_place(text: str) -> Place:
    """``column:NAME``, ``name:REGEX`` or ``folder:LEVEL``."""
    kind, _, rest = text.partition(":")
    if kind == "column" and rest:
        return Place("column", column=rest)
    if kind == "name" and rest:
        try:
            return Place("name", pattern=re.compile(rest))
        except re.error as error:
            raise ValueError(f"{rest!r} is no regular expression ({error})") from None
    if kind == "folder" and rest.isascii() and rest.isdigit() and 1 <= int(rest) <= DEEPEST_FOLDER:
        return Place("folder", level=int(rest))
    raise ValueError(f"write column:NAME, name:REGEX, or folder:LEVEL with a level from 1 to {DEEPEST_FOLDER}")


class SourceOptions(Strict):
    """How to read a source and what the owner declares about it beyond ``records`` and ``classes``.

    Privacy: everything here is chosen by the owner without looking at the records. What ends up in the domain (class
    names, number of clients or people, ``skip_broken``) is published in the certificate. Whether a file is broken
    follows from that file alone, so leaving it out moves no other record. But that a run takes place at all then tells
    that no more than ``skip_broken`` files were broken: that fact is public, and stated as assumed so.
    """

    name: str | None = None  # what reports call the data set
    class_names: tuple[str, ...] | None = None  # published; for class folders also the order of the labels
    value_range: tuple[float, float] | None = None  # of arrays that are not 8-bit; mapped to 0..255
    size: tuple[int, int] | None = None  # height, width: resize to it; None keeps the size and refuses a mixture
    channels: Literal[1, 3] | None = None  # convert to grey or RGB; None keeps the mode and refuses a mixture
    unlabelled: bool = False  # ignore the labels of the source
    clients: bool = False  # read who contributed each record (sub-folder per client, or the array "writer"/"clients")
    nominal_clients: Count | None = None  # declared, public number of clients
    min_images: Count | None = None  # FEMNIST only: leave out writers with fewer images
    person: str | None = None  # where to find whom a record is of: column:NAME, name:REGEX or folder:LEVEL
    nominal_people: Count | None = None  # declared, public number of people
    label: str | None = None  # where to find the class of a record, as for ``person``
    image: str | None = None  # column:NAME of the image in a table, or of its path; the array in an archive
    skip_broken: Natural = 0  # leave out up to so many broken files; one more is an error
    window: tuple[float, float] | None = None  # DICOM: centre and width of the values that become 0..255

    @field_validator("person", "label", "image")
    @classmethod
    def _a_place(cls, text: str | None) -> str | None:
        if text is not None:
            parse_place(text)
        return text

    @model_validator(mode="after")
    def _sensible(self) -> SourceOptions:
        if self.image is not None and parse_place(self.image).kind != "column":
            raise ValueError(f"image: {self.image!r}; only column:NAME says where images are")
        if self.person is not None and self.clients:
            raise ValueError("person: given together with clients=True; pass one of them")
        if self.window is not None and self.window[1] <= 0:
            raise ValueError(f"window: a width of {self.window[1]:g}; pass (centre, width) with a width above 0")
        if self.label is not None and self.unlabelled:
            raise ValueError("label: given together with unlabelled=True; pass one of them")
        if self.value_range is not None and self.value_range[0] >= self.value_range[1]:
            raise ValueError(f"value_range: {self.value_range} is empty; pass (lowest, highest)")
        if self.size is not None and not all(8 <= side <= 64 for side in self.size):
            raise ValueError(f"size: {self.size[0]}x{self.size[1]}; sizes from 8x8 to 64x64 are supported")
        if self.class_names is not None and len(set(self.class_names)) != len(self.class_names):
            raise ValueError(f"class_names: {', '.join(self.class_names)} holds a name twice; name each class once")
        if self.class_names is not None and self.unlabelled:
            raise ValueError("class_names: given together with unlabelled=True; pass one of them")
        return self


@dataclass(frozen=True)
class Declared:
    """All that a caller said about a source, carried together."""

    records: int | None = None
    classes: int | None = None
    options: SourceOptions = field(default_factory=SourceOptions)

    def __post_init__(self) -> None:
        if self.options.unlabelled and self.classes is not None:
            raise InputError(f"classes: {self.classes} given together with unlabelled=True; pass one of them")

    @property
    def labelled(self) -> bool:
        """Whether the caller said that records carry a class."""
        return self.classes is not None or self.options.class_names is not None

    def with_options(self, **changes: object) -> Declared:
        """The same declaration with some options changed."""
        return Declared(self.records, self.classes, self.options.model_copy(update=changes))


def first_sentence(error: ValidationError) -> str:
    """The first complaint of a validation as one sentence that names the field."""
    first = error.errors()[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"])
    if not where:
        return message
    if first["type"] == "missing" and len(first["loc"]) > 1:  # a list that is too short
        return f"{first['loc'][0]}: {first.get('input')!r} has too few values; see docs/data.md"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such option; known are {', '.join(sorted(SourceOptions.model_fields))}"
    return f"{where}: {first.get('input')!r} is not valid ({message[:1].lower()}{message[1:]}); see docs/data.md"


def source_options(**values: object) -> SourceOptions:
    """``SourceOptions`` for callers with user input: a bad value is an ``InputError`` with one sentence."""
    return _validated(SourceOptions, values)


def declare_domain(**values: object) -> Domain:
    """A ``Domain`` from declared values: a bad value is an ``InputError`` with one sentence."""
    return _validated(Domain, values)


def _validated(kind: type[Declaration], values: dict[str, object]) -> Declaration:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(first_sentence(error)) from None
    except UnicodeEncodeError as error:
        raise InputError(f"declarations: {error.object!r} is not valid text; write names in UTF-8") from None


def positive_whole(name: str, value: object, example: int) -> int:
    """A positive whole number of any integer type; fractions, truth values and text are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}: {value!r} is not a positive whole number; pass for example {name}={example}")
    return int(value)


def require_records(records: int | None) -> int:
    """The declared number of records; there is no default, because the true number is private."""
    if records is None:
        raise InputError(
            "records: the number of records was not declared; pass records=N (--records N), a public size that need "
            "not be exact"
        )
    return positive_whole("records", records, example=10_000)


def require_clients(options: SourceOptions) -> int:
    """The declared number of clients; there is no default, because the true number is private."""
    if options.nominal_clients is None:
        raise InputError(
            "nominal_clients: records carry clients, but the number of clients was not declared;"
            " pass nominal_clients=N, a public number (it need not be exact)"
        )
    return options.nominal_clients


def require_people(options: SourceOptions) -> int:
    """The declared number of people; there is no default, because the true number is private."""
    if options.nominal_people is None:
        raise InputError(
            "nominal_people: records are of people, but the number of people was not declared;"
            " pass nominal_people=N (--declare nominal_people=N), a public number (it need not be exact)"
        )
    return options.nominal_people


def refuse_people(domain: Domain, method: str, protects: str = "single records") -> None:
    """Keep people out of a training that does not protect them.

    Privacy: a method whose unit is a record, trained on data with several images of a person, promises that person
    less than it seems to. Whoever declared people must hear it before the data are touched.
    """
    if domain.nominal_people is not None:
        raise InputError(
            f"person: people were declared, but {method} protects {protects}, not all images of a person; leave person"
            " and nominal_people out to train it all the same, or train a method that protects people, such as dp-merf"
            " or dp-diffusion"
        )


def require_classes(classes: int | None, options: SourceOptions) -> int:
    """The declared number of classes, from ``classes`` or from the class names."""
    names = options.class_names
    if classes is None and names is None:
        raise InputError(
            "classes: records carry labels, but the classes were not declared;"
            " pass classes=N (--classes N), or unlabelled=True (--declare unlabelled=true) to ignore the labels"
        )
    if classes is None:
        assert names is not None
        return len(names)
    classes = positive_whole("classes", classes, example=10)
    if names is not None and len(names) != classes:
        raise InputError(
            f"class_names: {len(names)} names, but classes={classes} was declared; pass one name per class"
        )
    return classes
