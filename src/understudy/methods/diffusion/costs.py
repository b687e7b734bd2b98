"""What a diffusion model takes beside epsilon: memory and time, from what was measured. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.data.domain import Domain
from understudy.data.sampling import places_in_pass
from understudy.privacy.plan import Costs

if TYPE_CHECKING:
    from understudy.methods.diffusion.dp_diffusion import DpDiffusionConfig

_BYTES = 22.3  # for each value between two blocks, as seen on a card at widths of 16 to 64
_FORMED = 0.71  # of a unit's gradient, in single precision, is formed at the same time


def costs(config: DpDiffusionConfig, domain: Domain) -> Costs:
    """Steps, memory and time of a decided config: six times the work of one pass, at speeds that were seen."""
    privacy, method = config.privacy, config.method
    steps, rows = privacy.steps or 1, privacy.images_in_step(domain) * method.draws
    work = multiplications(config, domain)
    warmed = privacy.start != "none" or method.warm_up.leaves
    warm = (method.warm_up.steps or 0) * (method.warm_up.batch or 1) if warmed else 0
    fit = method.embedding.steps if privacy.start == "embedding" else 0
    drawn = fit * method.embedding.batch * domain.values  # on a processor the fit's own network takes most of it
    touched = (steps * rows + warm) * domain.shape[1] * domain.shape[2] * (method.widths or (32,))[0]
    units, each = _units_in_pass(config, rows)
    return Costs(
        steps=steps,
        memory_bytes=int(units * (_BYTES * activations(config, domain) * each + 4 * _FORMED * weights(config)))
        + domain.nominal_records * domain.values
        + 600 * 2**20,
        seconds=steps * rows * 6 * work / 3e10 + warm * 6 * work / 7e10 + 3e-7 * touched + 1.3e-6 * drawn + 5e-3 * fit,
        seconds_on_gpu=steps * (0.003 + rows * 6 * work / 8.6e13) + warm * 6 * work / 4.4e13 + 0.009 * fit + 20,
    )


def _units_in_pass(config: DpDiffusionConfig, rows: int) -> tuple[int, int]:
    """Units that the network sees at once, and noisy images of each: of a record its draws, of a person all images'."""
    batch = config.privacy.batch or 1
    each = max(1, rows // batch)
    return places_in_pass(batch, max(1, config.runtime.micro_batch // each)), each


def activations(config: DpDiffusionConfig, domain: Domain) -> float:
    """Values between the blocks of the network, of one image."""
    widths, pixels = config.method.widths or (), float(domain.shape[1] * domain.shape[2])
    return (2 * config.method.blocks + 1) * sum(pixels / 4**number * wide for number, wide in enumerate(widths))


def multiplications(config: DpDiffusionConfig, domain: Domain) -> float:
    """Multiplications of one pass over one image, of the convolutions alone."""
    pixels = float(domain.shape[1] * domain.shape[2])
    return sum(pixels / 4**number * kernels for number, kernels in enumerate(_kernels(config)))


def weights(config: DpDiffusionConfig) -> int:
    """Of the network: its kernels, and what tells every block the time and the class."""
    widths, blocks = config.method.widths or (), config.method.blocks
    told = 4 * widths[0] * 2 * ((2 * blocks + 1) * sum(widths) + 2 * widths[-1])
    return sum(_kernels(config)) + told


def _kernels(config: DpDiffusionConfig) -> list[int]:
    """The weights of the 3x3 kernels of each resolution."""
    widths, blocks = config.method.widths or (), config.method.blocks
    width, found = widths[0], []
    for number, wide in enumerate(widths):
        below = widths[min(number + 1, len(widths) - 1)]
        down = width + wide * (2 * blocks - 1)
        up = (below + wide) + (2 * blocks) * wide + (blocks + 1) * wide + below
        found.append(9 * wide * (down + up))
        width = wide
    return found
