"""A release: a generator with its certificate, as an object that draws samples and as a folder to publish."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from understudy.data.domain import Domain
from understudy.devices import choose_device
from understudy.errors import InputError
from understudy.files import write_bytes, write_text
from understudy.methods.base import Method
from understudy.methods.config import build_config
from understudy.models.annotator import AnnotatedGenerator
from understudy.models.generator import Generator, Watch
from understudy.privacy import accounting
from understudy.privacy.certificate import (
    ACCOUNT_SCHEMA,
    NOT_COVERED,
    NOT_PRIVATE,
    Certificate,
    Guarantee,
    parse_certificate,
    read_certificate,
    schema_for,
)
from understudy.privacy.claims import statements
from understudy.privacy.claims.statements import keep_claims
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.privacy.meaning import by_viewer
from understudy.privacy.randomness.streams import OS_ENTROPY, Randomness
from understudy.release import folders, signing
from understudy.release.contents import (
    generator_from_bytes,
    make_config,
    read_config,
    read_weights,
    sha256,
    weights_to_bytes,
)
from understudy.runs.bookings import statement_for
from understudy.runs.description import RunDescription
from understudy.runs.folder import RunFolder

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

_MAXIMUM_SAMPLE_BYTES = 16 * 2**30


@dataclass(frozen=True, eq=False)
class Release:
    """What may leave the building: the generator, the guarantee it carries, and all that was assumed public."""

    method: str
    generator: Generator
    certificate: Certificate
    domain: Domain
    method_config: dict[str, Any]
    read: str | None = None  # config.json as it was loaded: an earlier version may have written fewer fields

    def sample(
        self,
        count: int,
        labels: Sequence[int] | None = None,
        seed: int | None = None,
        temperature: float = 1.0,
        steps: int | None = None,
        watch: Watch | None = None,
        agree: bool = False,
    ) -> tuple[Images, Labels | None]:
        """Draw ``count`` images and their labels.

        Images are (N, H, W) for grey and (N, H, W, 3) for RGB; labels are None for an unlabelled domain. ``labels``
        names the classes to draw from, each equally likely; without it they follow the generator's own law. Where the
        release has a teacher, labels are what it and the generator together make of the images, if they mean anything
        to it (``teacher_names``); with ``agree``, and where classes are named, only images are kept that the generator
        drew for the class that the teacher gives them. A ``temperature`` below 1 draws latent values closer to their
        mean: images are more typical and vary less. ``steps`` are those of a diffusion model's sampler, where not its
        own; such a model is drawn from, and a teacher asked, on a graphics card if there is one. ``watch`` hears how
        many images are drawn. Any number of samples costs no privacy: they are made from what is already released.
        """
        self.check_count(count)
        self._check_temperature(temperature)
        if agree:
            self._check_agree()
        generator = self.generator if steps is None else self.generator.with_steps(steps)
        random = _random_beside(generator, seed)
        chosen = self._draw_labels(count, labels, random)
        draw = generator.draw_named if labels is None and not agree else partial(_by_class, generator)
        with torch.inference_mode():
            drawn, chosen = draw(chosen, random, temperature, watch)
        names = chosen.cpu().numpy().astype(np.int64) if self.domain.labelled else None
        return _pictures(drawn), names

    def sample_each(self, labels: Sequence[int], seed: int | None = None, temperature: float = 1.0) -> Images:
        """One image of each of these classes, in this order, as ``sample`` gives them; a class may come again."""
        self.check_count(len(labels))
        self._check_temperature(temperature)
        _checked_labels(labels, self.domain.classes)
        random = _random_beside(self.generator, seed)
        with torch.inference_mode():
            drawn = self.generator.sample(torch.tensor(list(labels), device=random.device), random, temperature)
        return _pictures(drawn)

    def check_count(self, count: int) -> None:
        """Refuse a number of images that cannot be drawn at once."""
        if count < 0:
            raise InputError(f"count: {count} images were asked for; pass 0 or more")
        if count * int(np.prod(self.domain.shape)) > _MAXIMUM_SAMPLE_BYTES:
            raise InputError(f"count: {count} images take over {_MAXIMUM_SAMPLE_BYTES} bytes; draw them in parts")

    def label(self, images: Images) -> Labels:
        """What the classifier of this release calls images as ``sample`` gives them; costs no privacy.

        Images are 8-bit, (N, H, W) for grey and (N, H, W, 3) for RGB, of the shape that the release declares.
        """
        return self.probabilities(images).argmax(axis=1)

    def probabilities(self, images: Images, watch: Watch | None = None) -> NDArray[np.float64]:
        """How likely each class is (N, classes), in the eyes of the classifier of this release.

        ``watch`` hears how many images are done.
        """
        classifier = self._classifier()
        planes = _planes(images, self.domain.shape)
        device = choose_device()
        with torch.inference_mode():  # a graphics card does it far sooner
            logs = classifier.to(device).annotate(torch.from_numpy(planes).to(device), watch)
        found: NDArray[np.float64] = logs.double().exp().cpu().numpy()
        return found

    @property
    def has_classifier(self) -> bool:
        """Whether the release can name images: it has a teacher or was annotated."""
        return isinstance(self.generator, AnnotatedGenerator)

    def check_classifier(self) -> None:
        """Refuse a release that cannot name images."""
        self._classifier()

    def _classifier(self) -> AnnotatedGenerator:
        if not isinstance(self.generator, AnnotatedGenerator):
            raise InputError(
                "label: this release holds no classifier; train with --set privacy.teacher_share=0.2, or name the "
                "images of a generator without labels with `understudy annotate`"
            )
        return self.generator

    def _check_agree(self) -> None:
        if not (isinstance(self.generator, AnnotatedGenerator) and self.generator.steered):
            raise InputError(
                "agree: this release has no teacher beside a generator with classes, so there is nobody to agree with; "
                "leave it out"
            )
        if not self.teacher_names:
            raise InputError(
                "agree: the teacher of this release names what the generator draws no better than by chance, so images "
                "keep the class they were drawn for; leave it out"
            )

    @property
    def teacher_names(self) -> bool:
        """Whether labels of samples are those of a classifier: it knows what the generator draws."""
        return isinstance(self.generator, AnnotatedGenerator) and self.generator.naming

    def _check_temperature(self, temperature: float) -> None:
        if not 0 < temperature <= 1:
            raise InputError(f"temperature: {temperature:g} was asked for; pass more than 0 and at most 1")
        drawing = getattr(self.generator.config, "base", self.generator.config)
        if temperature != 1 and drawing.latent_law != "normal":
            raise InputError(
                f"temperature: the latent values of this generator are {drawing.latent_law}, which cannot be drawn "
                "closer to their mean; leave it at 1"
            )

    def _draw_labels(self, count: int, labels: Sequence[int] | None, random: torch.Generator) -> torch.Tensor:
        if labels is None:
            return self.generator.draw_labels(count, random) if count else torch.empty(0, dtype=torch.long)
        allowed = _checked_labels(labels, self.domain.classes)
        picks = torch.randint(len(allowed), (count,), generator=random, device=random.device)
        return torch.tensor(allowed, device=random.device)[picks]

    def save(
        self,
        folder: Path | str,
        *,
        allow_seeded: bool = False,
        without_guarantee: bool = False,
        sign: Path | str | None = None,
        passphrase: str | None = None,
    ) -> Path:
        """Write the release folder: exactly the allowed files, all of them or none.

        An existing folder is replaced only if it is empty or holds a release and nothing else. A run with a seed is
        refused unless ``allow_seeded``, and one of a method without privacy unless ``without_guarantee``; their
        certificates keep the stamp, and ``verify`` refuses it.

        ``sign`` is the file of a private key (``understudy keys new``): the model card names it, and ``model.sig``
        covers every file. A signature belongs to one folder: a release that was loaded and is saved without ``sign`` is
        unsigned, and its model card says so.
        """
        from understudy.release.model_card import grid_png, model_card

        key = None if sign is None else self._signing_key(sign, passphrase)
        if self.certificate.randomness != OS_ENTROPY and not allow_seeded:
            raise InputError(
                f"release: the run was {self.certificate.randomness!r}; who knows the seed can remove the noise, so "
                "train again without a seed, or pass allow_seeded=True (--allow-seeded) to keep it for tests"
            )
        if self.certificate.not_private is not None and not without_guarantee:
            raise InputError(
                f"release: {self.method} is {self.certificate.not_private}; it stays in its run folder, so train a "
                "private method for something to hand out"
            )
        weights, config = weights_to_bytes(self.generator), self._config_text()
        hashes = (sha256(weights), sha256(config.encode("utf-8")))
        certified = (self.certificate.generator_sha256, self.certificate.config_sha256 or hashes[1])
        if hashes != certified:
            raise InputError(
                "release: weights or config were changed after the certificate was made; certify them again"
            )
        with folders.new_folder(folder, folders.holds_only_a_release) as place:
            write_bytes(place / folders.WEIGHTS, weights)
            write_text(place / folders.CONFIG, config)
            write_text(place / folders.CERTIFICATE, self.certificate.to_json())
            write_text(place / folders.MODEL_CARD, model_card(self, key.fingerprint if key else None))
            write_bytes(place / folders.SAMPLES, grid_png(self))
            if key is not None:
                signing.sign(place, Path(folder).resolve().name, key)
        return Path(folder)

    def _signing_key(self, sign: Path | str, passphrase: str | None) -> signing.SigningKey:
        """The key to sign with; a release that `verify` refuses anyway is not worth anybody's name."""
        if self.certificate.randomness != OS_ENTROPY or self.certificate.not_private is not None:
            stamp = self.certificate.not_private or self.certificate.randomness
            raise InputError(f"release: it is stamped {stamp!r}, so nobody should vouch for it; leave the key out")
        return signing.signing_key(sign, passphrase)

    def _config_text(self) -> str:
        """``config.json``: the text that was loaded, as long as it says what this release says."""
        config = make_config(
            method=self.method, generator=self.generator.config, domain=self.domain, method_config=self.method_config
        )
        if self.read is not None and make_config(**json.loads(self.read)) == config:
            return self.read
        return config.to_json()


def _random_beside(generator: Generator, seed: int | None) -> torch.Generator:
    """Where chance comes from, on the device that the generator is moved to: a card, if there is one and it pays."""
    device = choose_device() if generator.stepwise else next(generator.parameters()).device
    generator.to(device)
    random = Randomness().generator(device)
    return random if seed is None else random.manual_seed(_checked_seed(seed))


def _pictures(drawn: torch.Tensor) -> Images:
    """Images (N, C, H, W) as (N, H, W), or (N, H, W, 3) in colour."""
    images = drawn.cpu().numpy()
    return np.ascontiguousarray(images[:, 0] if images.shape[1] == 1 else images.transpose(0, 2, 3, 1))


def _by_class(
    generator: Generator, labels: torch.Tensor, random: torch.Generator, temperature: float, watch: Watch | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of the classes asked for; whoever names them agrees."""
    return generator.sample(labels, random, temperature, watch), labels


def _planes(images: Images, shape: tuple[int, int, int]) -> Images:
    """Images as ``sample`` gives them as (N, C, H, W)."""
    channels, height, width = shape
    expected = (height, width) if channels == 1 else (height, width, channels)
    if images.dtype != np.uint8 or images.shape[1:] != expected:
        raise InputError(
            f"images: {images.dtype} of shape {images.shape}, but this release knows 8-bit images (N, "
            f"{', '.join(str(side) for side in expected)}); bring them into that form first"
        )
    planes = images[:, None] if channels == 1 else images.transpose(0, 3, 1, 2)
    return np.require(planes, requirements=("C", "W"))  # a tensor shares its memory, and takes none that is read-only


def build_release(
    method: str,
    generator: Generator,
    domain: Domain,
    method_config: Mapping[str, Any],
    certificate_fields: Mapping[str, Any],
) -> Release:
    """A release with its certificate completed: the hashes are those of the files that ``save`` writes.

    ``certificate_fields`` holds what the run knows (guarantees, events, assumptions, randomness); date and software
    versions are filled in where they are missing. The generator is put into evaluation mode.
    """
    config = make_config(method=method, generator=generator.config, domain=domain, method_config=dict(method_config))
    fields = {
        "created": datetime.now(UTC).date().isoformat(),  # no time of day: it would show how long the run took
        "software": {name: _version(name) for name in ("understudy", "torch", "dp-accounting", "numpy", "scipy")},
        **certificate_fields,
        "schema": ACCOUNT_SCHEMA
        if certificate_fields.get("account") is not None
        else schema_for(
            [Guarantee.model_validate(claim) for claim in certificate_fields.get("guarantees", ())],
            [Event.model_validate(event) for event in certificate_fields.get("events", ())],
        ),
        "method": method,
        "generator_sha256": sha256(weights_to_bytes(generator.eval())),
        "config_sha256": sha256(config.to_json().encode("utf-8")),
    }
    return Release(method, generator, parse_certificate(fields), domain, config.method_config)


def certify(
    method: Method, folder: RunFolder, description: RunDescription, ledger: Ledger, generator: Generator, reason: str
) -> Release:
    """Certify what the ledger holds and write ``release/``; the claim follows from events, never from the config.

    ``description`` is that of the run as it began or went on: what becomes of its file meanwhile changes nothing.
    """
    ledger.check_releasable()
    if description.identity is not None:
        description.identity.check_newest(ledger)
    fields = method.certificate_fields(_certificate_fields(method, folder, description, ledger))
    release = build_release(
        method=description.method,
        generator=generator,
        domain=description.domain,
        method_config=method.released_config(description.config),
        certificate_fields={**fields, "stopped_because": reason},
    )
    release.save(folder.release, allow_seeded=True, without_guarantee=True)
    ledger.note(reason)
    if description.identity is not None:
        description.identity.remember(ledger)
    return release


def _certificate_fields(
    method: Method, folder: RunFolder, description: RunDescription, ledger: Ledger
) -> dict[str, Any]:
    """What the run itself has to say in a certificate."""
    claims = _claims(method, folder, description, ledger)
    promised = [Guarantee.model_validate(claim) for claim in claims["guarantees"]]
    disclosed = (statements.NOT_COVERED,) if claims.get("data_dependent") else ()
    account = None
    if description.account is not None and description.identity is not None:
        account = statement_for(description.account, description.identity.name)
    return {
        **claims,
        "assumed_public": description.domain.assumed_public(),
        "randomness": Randomness(description.seed).stamp,
        "runs_on_this_data": max(description.runs_on_this_data, account.runs if account else 0),
        "account": None if account is None else account.model_dump(exclude_none=True),
        "plan_raised": ledger.plan_was_raised(),
        "remarks": [*description.remarks, *description.declared_moves, *by_viewer(promised)],
        "not_covered": (*NOT_COVERED, *method.not_covered, *disclosed),
    }


def _claims(method: Method, folder: RunFolder, description: RunDescription, ledger: Ledger) -> dict[str, Any]:
    """What is promised and why: the events of the ledger and what they cost; for a method without privacy a stamp.

    Privacy: claims that depend on the data go to the private folder, and further only if the config asks for it.
    """
    if not method.private:
        return {"guarantees": [], "events": [], "not_private": NOT_PRIVATE}
    events = method.all_events(ledger.events())
    config = build_config(method.config_type, description.config)
    claims = method.claims(config, events, description.budget)
    others = method.data_dependent_claims(config, events, description.budget, folder)
    if others:
        keep_claims(folder.claims, others, claims)
    publish = method.publishes_data_dependent_claims(config)
    published = [claim for claim in others if publish and isinstance(claim, statements.BayesianClaim)]
    return {
        "guarantees": [claim.model_dump(exclude_none=True) for claim in claims],
        "events": [event.model_dump(exclude_none=True) for event in events],
        "data_dependent": [statements.as_published(claim).model_dump() for claim in published] or None,
        "accounting": accounting.describe(),
    }


def load(folder: Path | str) -> Release:
    """A release from its folder, or from the folder of the run that made it.

    Reads JSON and safetensors only, within size limits; weights that do not belong to the certificate are refused. The
    claim itself is not recomputed here: that is what ``verify`` does.
    """
    place = folders.find_release(folder)
    for name in (folders.CERTIFICATE, folders.CONFIG, folders.WEIGHTS):
        if not (place / name).is_file():
            raise InputError(f"release: {place} holds no file {name}; pass the folder of a release or of a run")
    certificate = read_certificate(place / folders.CERTIFICATE)
    config = read_config(place / folders.CONFIG)
    content = read_weights(place / folders.WEIGHTS)
    if sha256(content) != certificate.generator_sha256:
        raise InputError(f"release: the weights in {place} are not those that its certificate names; fetch it again")
    if config.method != certificate.method:
        raise InputError(f"release: {place} was made by {config.method!r} but certified as {certificate.method!r}")
    generator = generator_from_bytes(content, config.generator)
    text = (place / folders.CONFIG).read_bytes().decode("utf-8")
    return Release(config.method, generator, certificate, config.domain, config.method_config, text)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise InputError(f"seed: {seed} does not lie in 0..2^63-1; pass for example seed=1")
    return seed


def _checked_labels(labels: Sequence[int], classes: int | None) -> list[int]:
    if classes is None:
        raise InputError("labels: this generator has no classes; leave the labels out")
    allowed = sorted({int(label) for label in labels})
    if not allowed:
        raise InputError(f"labels: none were given; name classes from 0 to {classes - 1}, or leave labels out")
    wrong = [label for label in allowed if not 0 <= label < classes]
    if wrong:
        raise InputError(f"labels: found {wrong[0]}, but this generator knows the classes 0 to {classes - 1}")
    return allowed


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"
