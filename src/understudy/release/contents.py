"""What a release is made of: ``config.json`` and the weights, one safetensors file; both are read with distrust.

The config says how to build the generator, the declared domain, and the public hyper-parameters. Nothing is built
before names, shapes and types of the weights are checked.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from understudy.configs import validated
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.files import decode_json, laid_out, read_object
from understudy.models.generator import AnyGeneratorConfig, Generator, GeneratorConfig, build_generator
from understudy.release.folders import LARGEST_BYTES

_INVALID = "this is not the config of a release (schema 1)"
_MAXIMUM_HEADER = 2**20  # bytes that name the tensors; a generator has some dozens
_OF_A_TENSOR = ("dtype", "shape", "data_offsets")
_ALIGNED = 8  # bytes: a header ends in fewer spaces than that
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


class ReleaseConfig(BaseModel):
    """All of a release that is neither weights nor guarantee; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    schema_version: Annotated[int, Field(strict=True, ge=1, le=1, alias="schema")] = 1  # Literal[1] takes true
    method: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    generator: AnyGeneratorConfig
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
            return laid_out(values)
        except ValueError as error:
            raise InputError(f"config: {error}; a release holds finite numbers only") from None


def make_config(**values: Any) -> ReleaseConfig:
    """A validated config; the first mistake is one sentence."""
    return validated(ReleaseConfig, values, "config", _INVALID)


def read_config(path: Path) -> ReleaseConfig:
    """The config of a release folder, where no value is converted to another type."""
    return validated(ReleaseConfig, read_object(path, "config"), "config", _INVALID, exact=True)


def weights_to_bytes(generator: Generator) -> bytes:
    """The generator's state as a safetensors file; the same weights give the same bytes."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in generator.state_dict().items()}
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise InputError(f"generator: {broken[0]} holds values that are not finite; a broken generator is not released")
    return bytes(save(tensors))


def sha256(content: bytes) -> str:
    """The SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def read_weights(path: Path) -> bytes:
    """The bytes of a weights file of reasonable size."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise InputError(f"weights: {path} is larger than {LARGEST_BYTES} bytes; it is not a generator")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"weights: {path} cannot be read ({error.strerror}); is this a release folder?") from None


def generator_from_bytes(content: bytes, config: GeneratorConfig) -> Generator:
    """The generator that a config describes, with these weights, ready to draw from.

    The file's header is compared with the network's shapes, which are found without allocating memory: a config that
    asks for a huge network is refused unless the file really holds it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    found, expected = _header(content), _expected(config)
    if found.keys() != expected.keys():
        name = min(found.keys() ^ expected.keys())
        raise InputError(
            f"weights: tensor {name!r} is {'not expected' if name in found else 'missing'} for this config"
        )
    for name, wanted in expected.items():
        if found[name] != wanted:
            raise InputError(f"weights: tensor {name!r} is {found[name]}, but the config needs {wanted}")
    generator = build_generator(config)
    try:
        generator.load_state_dict(load(content))
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise InputError(f"weights: the file cannot be read ({error}); it is damaged") from None
    if not all(torch.isfinite(tensor).all() for tensor in generator.state_dict().values()):
        raise InputError("weights: they hold values that are not finite; the file is damaged")
    return generator.eval().requires_grad_(False)


def _expected(config: GeneratorConfig) -> dict[str, str]:
    with torch.device("meta"):
        state = build_generator(config).state_dict()
    return {name: _describe(_TYPES.get(tensor.dtype), list(tensor.shape)) for name, tensor in state.items()}


def _header(content: bytes) -> dict[str, str]:
    """What a safetensors file says it holds: name to type and shape."""
    try:
        (length,) = struct.unpack("<Q", content[:8])
        if length > _MAXIMUM_HEADER:
            raise InputError(f"weights: a header of {length} bytes; at most {_MAXIMUM_HEADER} are read, fetch it again")
        text = content[8 : 8 + length].decode("utf-8")
        header = decode_json(text)
        _check_nothing_else(text, header)
        return {name: _describe(entry["dtype"], entry["shape"]) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError("weights: the file is not in the safetensors format; it is damaged") from None


def _check_nothing_else(text: str, header: dict[str, Any]) -> None:
    """That a header says of each tensor what it must, in one order and the shortest way: readers see nothing else."""
    told = "__metadata__" not in header and all(tuple(entry) == _OF_A_TENSOR for entry in header.values())
    told = told and sorted(header.values(), key=lambda entry: entry["data_offsets"]) == list(header.values())
    shortest = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    if not told or text.rstrip(" ") != shortest or len(text) - len(shortest) >= _ALIGNED:
        raise InputError("weights: the file holds text beside its tensors, which no release does; fetch it again")


def _describe(kind: Any, shape: list[int]) -> str:
    return f"{kind} of shape {'x'.join(str(side) for side in shape) or 'scalar'}"
