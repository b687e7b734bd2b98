"""A client in its folder: how it is written, and how it is opened again for every message (a stock node forgets)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from understudy.configs import validated
from understudy.data.catalog import is_known
from understudy.data.dataset import ImageDataset, no_records
from understudy.data.domain import SourceOptions
from understudy.data.sources import load
from understudy.errors import EmptyDataError, InputError
from understudy.federated.client import Client, Membership, check_membership, lost_ledger, open_ledger, spending
from understudy.federated.contract import Contract, read_contract
from understudy.federated.updates import UpdateClient
from understudy.files import make_folder, read_json, write_text
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.runs.folder import RunFolder

CONTRACT, TERMS = "contract.json", "client.json"


class ClientTerms(BaseModel):
    """``client.json``: number, own budget against the server, and where the server and the images are."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    client: Annotated[int, Field(ge=0)]
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    superlink: str | None = None  # host:port of the server
    source: str | None = None
    options: SourceOptions = SourceOptions()


def write_client(folder: Path, contract: Contract, terms: ClientTerms) -> None:
    """Put contract and terms into a client's folder."""
    make_folder(folder, "client")
    write_text(folder / CONTRACT, contract.to_json())
    write_terms(folder, terms)


def write_terms(folder: Path, terms: ClientTerms) -> None:
    """Put the client's own terms into its folder."""
    write_text(folder / TERMS, json.dumps(terms.model_dump(mode="json"), indent=2) + "\n")


def read_terms(folder: Path) -> ClientTerms:
    """The client's own terms."""
    path = folder / TERMS
    return validated(ClientTerms, read_json(path, "client"), f"client: {path}", "write it anew with init")


def lasting_source(data: str) -> str:
    """Where images are, in words that still hold when the client is started elsewhere."""
    return data if is_known(data) else str(Path(data).expanduser().absolute())


def open_client(folder: Path, say: Callable[[str], None] = lambda text: None) -> Client | UpdateClient:
    """The client of a folder with its data, of the kind that its contract says; ``say`` speaks to its owner alone.

    Privacy: reads private data into memory; nothing of it is in any error.
    """
    contract, terms = read_contract(folder / CONTRACT), read_terms(folder)
    membership = Membership(terms.client, Budget(terms.epsilon, terms.delta))
    kind = Client if contract.kind == "gs-wgan-federated" else UpdateClient
    return kind(folder, contract, membership, _present_data(folder, contract, membership, say))


def _present_data(folder: Path, contract: Contract, membership: Membership, say: Callable[[str], None]) -> ImageDataset:
    """The data of a client; of one that has taken part already, none where they cannot be read any more.

    Privacy: whether a client answers must not depend on its data. Data that cannot be read are an error before the
    client takes part for the first time; afterwards it goes on with noise alone, and only its owner is told.
    """
    try:
        data = client_data(read_terms(folder), contract)
        check_membership(contract, membership, data)
    except Exception as error:
        if not RunFolder(folder).private.is_dir():
            raise
        say(f"data: they cannot be read now, so this client answers with noise alone until they can: {error}")
        return no_records(contract.domain, "unreadable")
    return data


def read_spending(folder: Path) -> dict[str, float | int | str]:
    """What the client of a folder has spent, from its ledger alone; its data are not opened."""
    contract, terms = read_contract(folder / CONTRACT), read_terms(folder)
    membership = Membership(terms.client, Budget(terms.epsilon, terms.delta))
    if contract.kind != "gs-wgan-federated":
        raise InputError(
            f"spending: {contract.kind} promises a client nothing against the server, so there is nothing to count; "
            "the guarantee against the public is in the certificate"
        )
    if not RunFolder(folder).ledger.exists():
        if RunFolder(folder).private.is_dir():
            raise lost_ledger(folder)
        with TemporaryDirectory() as place:
            return spending(Ledger.create(RunFolder(Path(place)).ledger), contract, membership)
    return spending(open_ledger(folder), contract, membership)


def client_data(terms: ClientTerms, contract: Contract) -> ImageDataset:
    """The images of a client, declared as its contract says; a source without any image is a data set like others."""
    if terms.source is None:
        raise InputError("data: the client does not know where its images lie; pass --data PATH once")
    domain = contract.domain
    update = {
        "unlabelled": domain.classes is None,
        "class_names": domain.class_names,  # so that a class of which a client has no image may be missing
        "size": domain.shape[1:],
        "channels": domain.shape[0],
    }
    known = {name: value for name, value in update.items() if not getattr(terms.options, name)}
    options = terms.options.model_copy(update=known)
    try:
        return load(terms.source, records=domain.nominal_records, classes=domain.classes, options=options)
    except EmptyDataError:
        return no_records(domain, "empty")
