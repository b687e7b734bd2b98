"""Method configs: frozen, typed, no unknown keys, in three groups: ``privacy``, ``method`` and ``runtime``.

``privacy`` holds all that changes epsilon, ``runtime`` only what cannot change it (a test asserts it), ``method`` the
rest. A config never holds executable code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from understudy.configs import MethodConfig, exactly
from understudy.errors import InputError
from understudy.files import decode_json

_MAXIMUM_BYTES = 4 * 2**20


ConfigType = TypeVar("ConfigType", bound=MethodConfig)


def build_config(kind: type[ConfigType], values: Mapping[str, Any], *, exact: bool = False) -> ConfigType:
    """A validated config; the first mistake is named with its value and, for an unknown key, the known ones.

    ``exact``: values come from the config of a release, where no type is converted (``configs.exactly``).
    """
    try:
        return exactly(kind, dict(values)) if exact else kind.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(_explain(kind, error)) from None


def read_config_file(path: Path) -> dict[str, Any]:
    """The values of a JSON or TOML config file."""
    import tomllib

    if path.suffix not in ("", ".json", ".toml"):
        raise InputError(f"config: {path} ends in {path.suffix!r}; pass a .json or .toml file")
    try:
        if path.stat().st_size > _MAXIMUM_BYTES:
            raise InputError(f"config: {path} is larger than {_MAXIMUM_BYTES} bytes; it is not a file of settings")
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else decode_json(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config: {path} cannot be read ({error}); pass a .json or .toml file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"config: {path} is not valid {path.suffix or 'JSON'} ({error}); correct it there") from None
    if not isinstance(values, dict):
        raise InputError(f"config: {path} holds a {type(values).__name__}, but a table of settings is needed")
    return values


def overlay(values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Config values with others laid over them, group by group."""
    result = dict(values)
    for key, value in above.items():
        below = result.get(key)
        result[key] = overlay(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def refuse_runtime(stated: Mapping[str, Any]) -> None:
    """Refuse the config of a release that says where it was made: no release does, so something rides along."""
    if "runtime" in stated:
        raise InputError("config: it says how the run was computed ('runtime'), which no release does; fetch it again")


def left_open(stated: Mapping[str, Any], decided: Mapping[str, Any]) -> str | None:
    """What a config does not state of its noise, so that it would be decided to fit whatever is claimed."""
    for name, value in decided.items():
        if isinstance(value, Mapping):
            found = left_open(stated.get(name) or {}, value)
            if found:
                return found
        elif name.endswith(("noise_multiplier", "teacher_steps")) and value is not None and stated.get(name) is None:
            return name
    return None


def apply_settings(values: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Config values with ``group.key=value`` settings laid over them; values are read as JSON, else as text."""
    result = json.loads(json.dumps(dict(values)))
    for setting in settings:
        path, separator, raw = setting.partition("=")
        if not separator or not path:
            raise InputError(f"--set: {setting!r} is not of the form group.key=value; for example method.steps=2000")
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            value = raw
        *parents, last = path.strip().split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"--set: {path!r} goes through {parent!r}, which is a value and not a group")
        place[last] = value
    return result


def _explain(kind: type[MethodConfig], error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(kind, first["loc"][:-1]))
        return f"config: unknown key {where!r}; known here: {known}"
    advice = "pass auto, cpu or cuda" if first["type"] == "string_pattern_mismatch" else first["msg"]
    return f"config: {where}: {first.get('input')!r}: {advice}"


def _known_keys(kind: type[BaseModel], parents: Sequence[str | int]) -> list[str]:
    for parent in parents:
        field = kind.model_fields.get(str(parent))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        kind = field.annotation
    return sorted(kind.model_fields)
