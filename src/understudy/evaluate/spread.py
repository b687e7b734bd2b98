"""The features of the Inception network, computed by several processes of one machine.

Batches are dealt out in turn and come back in their order, so a Fréchet distance is that of one process up to rounding:
of products of matrices with other numbers of threads.

Privacy: real images pass through pipes to processes of the same user, which end with the one that started them; nothing
touches the disk. Features of real images are as private as the images.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from understudy.evaluate.checks import Images
from understudy.evaluate.inception import FeaturePrecision, InceptionFeatures, Weights, read_weights
from understudy.processes import checked_number, side_by_side, work

_FEWEST_BATCHES = 4  # for each process: for fewer it would start longer than it works


class SpreadFeatures(InceptionFeatures):
    """The same network in several processes, where there are images enough."""

    def __init__(
        self, weights: Weights, device: torch.device, precision: FeaturePrecision = "fp32", processes: int = 1
    ) -> None:
        super().__init__(weights, device, precision)
        self._weights, self._processes = weights.path, checked_number(processes)

    def batches(self, images: Images) -> Iterator[Tensor]:
        """The features of the images, batch by batch, on the device.

        Privacy: as private as the images are.
        """
        count = -(-len(images) // self.batch)
        workers = min(self._processes, count // _FEWEST_BATCHES)
        if workers < 2:
            yield from super().batches(images)
            return
        tasks = [self._task(images, range(rank, count, workers)) for rank in range(workers)]
        with side_by_side(__name__, tasks) as computing:
            for number in range(count):
                content = io.BytesIO(computing[number % workers].hear())
                yield torch.from_numpy(np.lib.format.read_array(content, allow_pickle=False)).to(self.device)

    def _task(self, images: Images, numbers: range) -> bytes:
        """One line of settings, then the images of some batches."""
        settings = {"weights": str(self._weights), "device": self.device.type, "precision": self.precision}
        buffer = io.BytesIO(json.dumps(settings).encode() + b"\n")
        buffer.seek(0, io.SEEK_END)
        own = np.concatenate([images[number * self.batch : (number + 1) * self.batch] for number in numbers])
        np.lib.format.write_array(buffer, own, allow_pickle=False)
        return buffer.getvalue()


def answers(task: bytes) -> Iterator[bytes]:
    """Of a worker: the features of each batch of its images."""
    content = io.BytesIO(task)
    settings = json.loads(content.readline())
    images = np.lib.format.read_array(content, allow_pickle=False)
    weights = read_weights(Path(settings["weights"]))
    network = InceptionFeatures(weights, torch.device(settings["device"]), settings["precision"])
    for features in network.batches(images):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, features.cpu().numpy(), allow_pickle=False)
        yield buffer.getvalue()


if __name__ == "__main__":
    sys.exit(work(answers))
