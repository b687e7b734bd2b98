"""What reads files and text from outside: each target takes the bytes of one hostile case in an empty folder.

A target returns, or raises an ``UnderstudyError``; anything else is a finding.
"""

from __future__ import annotations

import hashlib
import io
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from understudy.cli.options import parse_labels
from understudy.data.domain import source_options
from understudy.data.femnist import read_leaf
from understudy.data.folder import read_folder
from understudy.data.sources import load, parse_declarations, parse_shape
from understudy.errors import UnderstudyError
from understudy.methods.base import configure
from understudy.methods.config import apply_settings, read_config_file
from understudy.methods.registry import get_method
from understudy.privacy.ledger import Ledger
from understudy.release import export
from understudy.release.contents import read_config

from . import certificates, federation, seeds, signatures
from .mutations import Mutator, mutate_archive, mutate_bytes, mutate_json, nest


@dataclass(frozen=True)
class Target:
    """One reader: where its cases come from, how they are changed, how many a full campaign tries, and the reading."""

    name: str
    seeds: Callable[[], list[bytes]]
    mutators: tuple[Mutator, ...]
    cases: int
    read: Callable[[bytes, Path], None]

    def case(self, number: int) -> bytes:
        """The case of that number: the same bytes every time."""
        chance = random.Random(f"{self.name} {number}")
        seed = chance.choice(_seeds(self))
        mutator = chance.choice(self.mutators)
        return mutator(seed, chance)


@cache
def _seeds(target: Target) -> list[bytes]:
    return target.seeds()


def _release_config(content: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    read_config(folder / "config.json").to_json()


def _method_config(content: bytes, folder: Path, name: str = "config.json") -> None:
    (folder / name).write_bytes(content)
    configure(get_method("dp-merf"), read_config_file(folder / name))


def _toml_config(content: bytes, folder: Path) -> None:
    _method_config(content, folder, "config.toml")


def _settings(content: bytes, folder: Path) -> None:
    text = content.decode("utf-8", "surrogateescape")
    for reading in (
        lambda: configure(get_method("dp-merf"), apply_settings({}, [text])),
        lambda: source_options(**parse_declarations([text])),
        lambda: parse_shape(text),
        lambda: parse_labels(text),
    ):
        with suppress(UnderstudyError):
            reading()


def _weights(content: bytes, folder: Path) -> None:
    from understudy.release.contents import generator_from_bytes, read_weights

    (folder / "generator.safetensors").write_bytes(content)
    config = read_config(seeds.release_folder() / "config.json")
    generator_from_bytes(read_weights(folder / "generator.safetensors"), config.generator)


def _checkpoint(content: bytes, folder: Path) -> None:
    from understudy.runs.loop import Checkpoints

    (folder / "checkpoint-0000000004.safetensors").write_bytes(content)
    Checkpoints(folder).load_latest()


def _release(content: bytes, folder: Path) -> None:
    """A release whose config was changed and whose certificate names the changed config; samples are drawn."""
    from understudy.release.release import load as load_release

    shutil.copytree(seeds.release_folder(), folder / "release")
    (folder / "release" / "config.json").write_bytes(content)
    release = load_release(folder / "release")
    release.sample(2)


def _archive(content: bytes, folder: Path) -> None:
    (folder / "data.npz").write_bytes(content)
    load(folder / "data.npz", records=3, classes=3, options=source_options(value_range=(0.0, 255.0)))


def _picture(content: bytes, folder: Path) -> None:
    """The picture as it is, and resized."""
    (folder / "picture.png").write_bytes(content)
    with suppress(UnderstudyError):
        read_folder(folder, None, source_options())
    read_folder(folder, None, source_options(size=(8, 8), channels=1))


def _table(content: bytes, folder: Path, name: str = "table.csv") -> None:
    """A table of the picture beside it, by itself and with people."""
    (folder / name).write_bytes(content)
    (folder / "a.png").write_bytes(seeds.pictures()[0])
    people = source_options(person="column:who", nominal_people=2, class_names=("cat", "dog"), skip_broken=1)
    with suppress(UnderstudyError):
        load(folder / name, records=3, options=people)
    load(folder / name, records=3, classes=2)


def _parquet(content: bytes, folder: Path) -> None:
    _table(content, folder, "table.parquet")


def _shard(content: bytes, folder: Path) -> None:
    _table(content, folder, "shard.tar")


def _scan(content: bytes, folder: Path) -> None:
    """A DICOM file with a patient in it, whose name must stand in no sentence."""
    (folder / "scan.dcm").write_bytes(content)
    said, refusal = io.StringIO(), None
    for declared in ({"person": "column:PatientID", "nominal_people": 2}, {"window": (40, 400)}):
        with redirect_stderr(said):
            try:
                load(folder, records=3, options=source_options(**declared))
            except UnderstudyError as error:
                refusal = error
                said.write(str(error))
    if "Erika" in said.getvalue():
        raise ValueError("a patient is quoted")
    if refusal is not None:
        raise refusal


def _idx(content: bytes, folder: Path) -> None:
    (folder / "images-idx3-ubyte").write_bytes(content)
    load(folder / "images-idx3-ubyte", records=3, options=source_options())


def _idx_labels(content: bytes, folder: Path) -> None:
    (folder / "images-idx3-ubyte").write_bytes(seeds.idx_images()[0])
    (folder / "labels-idx1-ubyte").write_bytes(content)
    load(folder / "images-idx3-ubyte", records=3, classes=3)


def _leaf(content: bytes, folder: Path) -> None:
    (folder / "all_data_0.json").write_bytes(content)
    read_leaf(folder)


def _description(content: bytes, folder: Path) -> None:
    from understudy.runs.description import read_description
    from understudy.runs.folder import RunFolder

    (folder / "run.json").write_bytes(content)
    read_description(RunFolder(folder))


def _ledger(content: bytes, folder: Path) -> None:
    (folder / "ledger.jsonl").write_bytes(content)
    Ledger.open(folder / "ledger.jsonl").events()


def _class_names(content: bytes, folder: Path) -> None:
    """Class names as folder names: none may lead out of the folder, and no two may be the same."""
    names = content.decode("utf-8", "replace").split(",")
    folders = export.class_folders(range(len(names)), names)
    for name in folders.values():
        assert (folder / name).resolve().parent == folder.resolve(), f"{name!r} leads outside"
        (folder / name).mkdir()


def digest(content: bytes) -> str:
    """A short name for a case."""
    return hashlib.sha256(content).hexdigest()[:16]


def _certificates() -> list[bytes]:
    """Of good releases, and as designed."""
    return [*certificates.certificates(), *seeds.certificates()]


_JSON = (mutate_json, mutate_json, mutate_json, mutate_bytes, nest)
TARGETS = {
    target.name: target
    for target in (
        Target("certificate", _certificates, (*_JSON, *[certificates.edit] * 10), 20_000, certificates.give_verdict),
        Target("release-config", seeds.release_configs, _JSON, 8_000, _release_config),
        Target("method-config", seeds.method_configs, _JSON, 8_000, _method_config),
        Target("method-config-toml", seeds.toml_configs, (mutate_bytes, nest), 4_000, _toml_config),
        Target("settings", seeds.texts, (mutate_bytes, nest), 8_000, _settings),
        Target("weights", seeds.weights, (mutate_bytes,), 5_000, _weights),
        Target("checkpoint", seeds.checkpoints, (mutate_bytes,), 3_000, _checkpoint),
        Target("release", seeds.release_configs, (mutate_json,), 2_000, _release),
        Target("signature", signatures.signatures, (*_JSON, signatures.restate), 5_000, signatures.check),
        Target("npz", seeds.archives, (mutate_bytes, mutate_archive, mutate_archive), 14_000, _archive),
        Target("picture", seeds.pictures, (mutate_bytes,), 18_000, _picture),
        Target("table", seeds.tables, (mutate_bytes, nest), 4_000, _table),
        Target("parquet", seeds.parquet_tables, (mutate_bytes,), 4_000, _parquet),
        Target("shard", seeds.shards, (mutate_bytes,), 4_000, _shard),
        Target("scan", seeds.scans, (mutate_bytes,), 4_000, _scan),
        Target("idx", seeds.idx_images, (mutate_bytes,), 6_000, _idx),
        Target("idx-labels", seeds.idx_labels, (mutate_bytes,), 3_000, _idx_labels),
        Target("leaf", seeds.writers, _JSON, 1_500, _leaf),
        Target("run-description", seeds.descriptions, _JSON, 5_000, _description),
        Target("ledger", seeds.ledgers, (mutate_bytes, nest), 4_000, _ledger),
        Target("federated-question", federation.questions, (mutate_bytes,), 600, federation.ask_clients),
        Target("federated-answer", federation.answers, (mutate_bytes,), 8_000, federation.hear_answer),
        Target("federated-contract", federation.contracts, _JSON, 4_000, federation.sign_contract),
        Target("class-names", lambda: [b"cat,dog,a/b,../x,.,..,CON,a,A"], (mutate_bytes,), 3_000, _class_names),
    )
}
