"""Images of a release, drawn by several processes of one machine: block by block, each with chance of its own.

Images are drawn independently of each other, so it does not matter who draws which: their law is that of one process.
The one exception are images of a class that a classifier hardly ever finds among what the generator draws: they are the
likeliest of those that were drawn (``models/annotator.py``), which is then decided in each block.

How many blocks there are follows from the number of images alone, and so does the seed of a block where there is one:
the same seed and number of images give the same images in any number of processes. Without ``processes`` a seed gives
others.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from understudy.models.generator import Watch
from understudy.processes import checked_number, side_by_side, work
from understudy.release.release import Images, Labels, Release, load

_MOST_BLOCKS, _LARGEST_BLOCK = 64, 1000
_BLOCK_OF_NAMED = 2000  # where images are drawn until enough of a class have come up


@dataclass(frozen=True)
class DrawOptions:
    """What is drawn; as the arguments of ``Release.sample``."""

    count: int
    labels: tuple[int, ...] | None = None
    seed: int | None = None
    temperature: float = 1.0
    steps: int | None = None
    agree: bool = False

    def block(self, release: Release, size: int, number: int) -> tuple[Images, Labels | None]:
        """One block of images, with a seed of its own where there is one."""
        seed = self.seed
        if seed is not None:
            digest = hashlib.sha256(f"understudy:{seed}:block {number}".encode()).digest()
            seed = int.from_bytes(digest[:8], "little") >> 1
        return self.drawn(release, size, seed)

    def drawn(self, release: Release, size: int, seed: int | None) -> tuple[Images, Labels | None]:
        """So many images, by this seed."""
        return release.sample(size, self.labels, seed, self.temperature, self.steps, None, self.agree)


def sample_in_processes(
    folder: Path | str, release: Release, options: DrawOptions, processes: int, watch: Watch | None = None
) -> tuple[Images, Labels | None]:
    """Images and labels of the release in ``folder``, which was loaded already; ``watch`` hears how many are drawn.

    Privacy: none is spent; samples are made from what is released.
    """
    none, names = options.drawn(release, 0, options.seed)  # what cannot be drawn is refused here
    release.check_count(options.count)
    blocks = _blocks(release, options.count)
    workers = min(checked_number(processes), max(1, len(blocks)))
    tasks = [
        json.dumps({"release": str(folder), "options": asdict(options), "blocks": blocks[rank::workers]}).encode()
        for rank in range(workers)
    ]
    images = np.empty((options.count, *none.shape[1:]), np.uint8)
    labels = None if names is None else np.empty(options.count, np.int64)
    with side_by_side(__name__, tasks if blocks else []) as drawing:
        for number, start, size in blocks:
            content = io.BytesIO(drawing[number % workers].hear())
            images[start : start + size] = np.lib.format.read_array(content, allow_pickle=False)
            if labels is not None:
                labels[start : start + size] = np.lib.format.read_array(content, allow_pickle=False)
            if watch is not None:
                watch(start + size)
    return images, labels


def _blocks(release: Release, count: int) -> list[tuple[int, int, int]]:
    """Number, first image and size of each block: of public facts and the number of images alone."""
    size = max(1, min(_LARGEST_BLOCK, -(-count // _MOST_BLOCKS)))
    size = _BLOCK_OF_NAMED if release.has_classifier else size
    return [(number, start, min(size, count - start)) for number, start in enumerate(range(0, count, size))]


def answers(task: bytes) -> Iterator[bytes]:
    """Of a worker: the images and labels of each of its blocks."""
    given = json.loads(task)
    labels = given["options"].pop("labels")
    options = DrawOptions(**given["options"], labels=None if labels is None else tuple(labels))
    release = load(given["release"])
    for number, _, size in given["blocks"]:
        buffer = io.BytesIO()
        for part in options.block(release, size, number):
            if part is not None:
                np.lib.format.write_array(buffer, part, allow_pickle=False)
        yield buffer.getvalue()


if __name__ == "__main__":
    sys.exit(work(answers))
