"""The model card: ``README.md`` and ``samples.png``, for somebody who was handed a release and nothing else."""

from __future__ import annotations

import html
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from understudy.privacy.claims.statements import claim_in_words
from understudy.privacy.meaning import against, attack_bound, by_viewer, claim, event_in_words, in_words, unit_in_words
from understudy.privacy.randomness.streams import OS_ENTROPY
from understudy.release.signing import in_card

if TYPE_CHECKING:
    from understudy.release.release import Release

_COLUMNS = 10
_MOST_ROWS = 20
_SMALLEST_TILE = 48
_GAP = 2
_SEED = 0  # the picture can be drawn again from the same release
_USE = """\
## Use it

```python
import understudy as us

release = us.load_release("path/to/this/folder")
images, labels = release.sample(1000)
```

or `understudy sample path/to/this/folder -n 1000 --to samples.npz`. Any number of samples costs no further privacy.

## Check it

`understudy verify path/to/this/folder` recomputes the guarantee from the events in `certificate.json` with two
independent accountants, and compares the weights and the config with their hashes.
"""

OWN_LABELS = (
    "The teacher beside the generator names real images; what the generator draws it names no better than by chance, "
    "so samples keep the class they were drawn for."
)
_LIMITS = """\
## Limits

- Samples are made up. Rare things in the original data may be missing, and nothing in a sample is evidence about
  anybody.
- What is true of the data as a whole (say, that most images of a class are dark) can be learnt from the release; that
  is its purpose, and the guarantee does not hide it.
- `verify` proves the arithmetic, the hashes and the list of files. It cannot prove that the events in the certificate
  are all that happened: for that you trust whoever trained the generator.
- The guarantee does not cover:
"""


def model_card(release: Release, signer: str | None = None) -> str:
    """The model card as Markdown; names that came from outside are escaped. ``signer`` is the fingerprint of a key."""
    certificate = release.certificate
    if certificate.not_private is not None:
        return _card_without_privacy(release)
    parts = [
        f"# A private generator made with {plain(release.method)}\n",
        _what(release),
        "![samples drawn from the generator](samples.png)\n",
        f"## The guarantee: {claim(certificate.headline)}\n",
        "\n".join(f"- {sentence}" for sentence in _guarantee(release)) + "\n",
        *_account(release),
        "The guarantee follows from these accesses to the data, if they are all there were:\n",
        "\n".join(f"- {plain(event_in_words(event))}" for event in certificate.events) + "\n",
        *_data_dependent(release),
        "## Assumed public\n",
        "These were declared by the owner of the data and are not protected:\n",
        "\n".join(f"- {plain(statement)}" for statement in certificate.assumed_public) + "\n",
        "Stated by whoever trained it, and not proven: the accesses above took place as listed and are all there were; "
        f"runs on this data: {certificate.runs_on_this_data}; randomness: {plain(certificate.randomness)}; created: "
        f"{plain(certificate.created)}.\n",
        _USE,
        _who_vouches(signer),
        _LIMITS + "\n".join(f"  - {plain(item)}" for item in certificate.not_covered or ("side channels",)) + "\n",
    ]
    return "\n".join(parts)


def _who_vouches(signer: str | None) -> str:
    title = "## Who vouches for it\n\n"
    if signer is None:
        return f"{title}Nobody signed this folder: nobody vouches for the events.\n"
    return (
        f"{title}This folder was signed with {in_card(signer)}; the signature is `model.sig`. That is what the folder "
        "says of itself, and anybody can say it: get the public key from whom you think it came from, by another way "
        "than the folder, and check with `understudy verify path/to/this/folder --key THEIRS.pub`. A signature says "
        "who vouches for the events; it does not prove them.\n"
    )


def _card_without_privacy(release: Release) -> str:
    return (
        f"# A generator made with {plain(release.method)}: not private\n\n"
        f"**{plain(release.certificate.not_private or '')}.**\n\n"
        "This generator is a reference for comparisons. It may reveal single records of the data it was trained on, "
        "and nothing bounds how much. There is no guarantee to verify, and `understudy verify` refuses this folder.\n\n"
        "![samples drawn from the generator](samples.png)\n"
    )


def _guarantee(release: Release) -> list[str]:
    certificate = release.certificate
    lines = by_viewer(certificate.guarantees) or map(against, certificate.guarantees[1:])
    viewers = [f"{line[0].upper()}{line[1:]}." for line in lines]
    return [*in_words(certificate.headline, attack_bound(certificate)), *viewers]


def _account(release: Release) -> list[str]:
    """What all runs of one account reveal together, as whoever trained it says."""
    account = release.certificate.account
    if account is None:
        return []
    together = plain(f"{account.in_words()}.")
    return [f"Stated by whoever trained it, for all releases of one owner together: {together}\n"]


def _data_dependent(release: Release) -> list[str]:
    """Claims of another kind, under their own names, with what they assume."""
    claims = release.certificate.data_dependent or ()
    sentences = [sentence for claim in claims for sentence in claim_in_words(claim)]
    sentences += [f"It assumes: {assumption}." for claim in claims for assumption in claim.assumptions]
    if not sentences:
        return []
    return [
        "## Not covered by the guarantee: figures computed from the data\n",
        "Beside the guarantee, and not instead of it:\n",
        "\n".join(f"- {plain(each)}" for each in sentences) + "\n",
    ]


def plain(text: str) -> str:
    """Text from outside as one line that is neither HTML nor Markdown."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{character}" if character in "\\`*_[]|#!~" else character for character in escaped)


def _what(release: Release) -> str:
    domain = release.domain
    channels, height, width = domain.shape
    colour = "grey" if channels == 1 else "RGB"
    classes = f"of {domain.classes} classes" if domain.labelled else "without classes"
    stamp = ""
    if release.certificate.randomness != OS_ENTROPY:
        stamp = "**seeded: not for release.** Whoever knows the seed can remove the noise.\n\n"
    labels = f"\n{OWN_LABELS}\n" if release.has_classifier and not release.teacher_names else ""
    headline = release.certificate.headline
    whom = "any one of them" if headline.unit == "record" else unit_in_words(headline)
    return (
        f"{stamp}This folder holds a generator that draws {colour} images of {height}x{width} pixels {classes}. It was "
        f"trained on sensitive images and may be used in their place: what it can reveal about {whom} is bounded by "
        f"the guarantee below.\n{labels}"
    )


# The picture: one row for each class, ten columns, enlarged so that small images can be seen


def class_rows(
    release: Release, columns: int = _COLUMNS, temperature: float = 1.0
) -> list[tuple[str | None, NDArray[np.uint8]]]:
    """The name of each class (None without classes) and ``columns`` images of it; at most twenty rows."""
    if release.domain.classes is None:
        images, _ = release.sample(columns * 5, seed=_SEED, temperature=temperature)
        return [(None, images[start : start + columns]) for start in range(0, len(images), columns)]
    names = release.domain.class_names or [str(label) for label in range(release.domain.classes)]
    shown = range(min(release.domain.classes, _MOST_ROWS))
    images = release.sample_each(np.repeat(shown, columns).tolist(), _SEED, temperature)  # at once: one walk, not ten
    return [(names[label], rows) for label, rows in zip(shown, np.split(images, len(shown)), strict=True)]


def grid_png(release: Release, temperature: float = 1.0) -> bytes:
    """The sample picture of a release folder."""
    return png(tile(np.stack([images for _, images in class_rows(release, temperature=temperature)])))


def tile(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (rows, columns, H, W[, 3]) as one enlarged picture with light gaps."""
    rows, columns, height, width = images.shape[:4]
    factor = max(1, -(-_SMALLEST_TILE // min(height, width)))
    enlarged = images.repeat(factor, axis=2).repeat(factor, axis=3)
    high, wide = height * factor + _GAP, width * factor + _GAP
    canvas = np.full((rows * high + _GAP, columns * wide + _GAP, *images.shape[4:]), 255, dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            top, left = row * high + _GAP, column * wide + _GAP
            canvas[top : top + high - _GAP, left : left + wide - _GAP] = enlarged[row, column]
    return canvas


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A grey (H, W) or RGB (H, W, 3) picture as PNG."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
