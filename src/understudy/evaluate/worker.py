"""Trains one classifier in a process of its own: labelled images come in on stdin, one line of JSON goes out.

Nothing touches the disk: the arrays pass through a pipe in NumPy's own format, without pickle. A process of its own is
what makes its memory measurable and lets an interrupted evaluation end at once.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, BinaryIO

import numpy as np

from understudy.errors import UnderstudyError
from understudy.evaluate.classifiers import ClassifierSetup
from understudy.evaluate.downstream import DownstreamResult, LabelledImages, downstream_accuracy
from understudy.processes import end_with_parent


def encode(train: LabelledImages, test: LabelledImages) -> bytes:
    """The two sets as one stream of bytes."""
    buffer = io.BytesIO()
    for array in (train.images, train.labels, test.images, test.labels):
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def decode(stream: BinaryIO) -> tuple[LabelledImages, LabelledImages]:
    """The two sets of a stream."""
    arrays = [np.lib.format.read_array(stream, allow_pickle=False) for _ in range(4)]
    return LabelledImages(arrays[0], arrays[1]), LabelledImages(arrays[2], arrays[3])


def setup_as_dict(setup: ClassifierSetup) -> dict[str, Any]:
    """A setup as plain data."""
    return asdict(setup)


def setup_from(value: Mapping[str, Any]) -> ClassifierSetup:
    """The setup of plain data."""
    cnn = value["cnn"]
    if cnn is not None:
        from understudy.evaluate.cnn import CnnConfig

        cnn = CnnConfig(**{**cnn, "kernels": tuple(cnn["kernels"])})
    return ClassifierSetup(**{**value, "cnn": cnn})


def peak_memory_mb() -> int | None:
    """The most memory this process has held, where the system says so."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak // (2**20 if sys.platform == "darwin" else 2**10))


def result_from(line: str) -> DownstreamResult:
    """The result a worker wrote."""
    return DownstreamResult(**json.loads(line))


def main() -> int:
    """Read the task and the sets from stdin, write the result to stdout."""
    end_with_parent()
    task = json.loads(sys.stdin.buffer.readline())
    train, test = decode(io.BytesIO(sys.stdin.buffer.read()))  # a pipe has no position, which NumPy asks for
    try:
        result = downstream_accuracy(task["name"], train, test, setup_from(task["setup"]))
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(asdict(replace(result, memory_mb=peak_memory_mb()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
