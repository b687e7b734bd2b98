"""The folder of a federation as its operator keeps it, and what is written into it by ``init``.

DIR/server/federation.json   what is trained, within which budget, where and with which deadlines
DIR/server/contract.json     what all parties agree on
DIR/server/...               certificate authority, TLS certificate, public keys of the clients, Flower's own files
DIR/clients/client-000/      what client 0 takes home: contract, own terms, its key, the authority's certificate
DIR/server/run/              the run, once it is started; its release is in run/release
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from understudy.configs import validated
from understudy.data.dataset import ImageDataset, no_records
from understudy.data.domain import Domain
from understudy.errors import BudgetError, InputError
from understudy.federated.client import check_affordable
from understudy.federated.contract import Contract, get_federated_method
from understudy.federated.deployment import credentials
from understudy.federated.task import ClientTerms, write_client
from understudy.files import make_folder, read_json, write_text
from understudy.methods.base import configure
from understudy.methods.config import overlay
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Guarantee
from understudy.privacy.plan import Plan

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # how to reach here what listens everywhere
SETTINGS, CONTRACT, NODES, OUTCOME, RUN = "federation.json", "contract.json", "nodes.json", "outcome.json", "run"
_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "understudy-federation"
version = "1.0.0"
description = "Names the apps of the installed package understudy; it brings no code of its own."
dependencies = []

[tool.flwr.app]
publisher = "understudy"

[tool.flwr.app.components]
serverapp = "understudy.federated.deployment.server_app:app"
clientapp = "understudy.federated.client_app:app"

[tool.flwr.app.config]
understudy-server = ""
"""


class FederationConfig(BaseModel):
    """``federation.json``. ``least_clients`` must be there before the first round; later ones may join at any time."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    method: str
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    domain: Domain
    config: dict[str, Any]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 9092
    listen: str | None = None  # the address that the server binds to, where it is not the host
    least_clients: Annotated[int, Field(ge=1)]
    start_seconds: Annotated[float, Field(gt=0)] = 300.0
    round_seconds: Annotated[float, Field(gt=0)] = 120.0

    @property
    def budget(self) -> Budget:
        """The budget of the public guarantee."""
        return Budget(self.epsilon, self.delta)

    @property
    def address(self) -> str:
        """Where clients reach the SuperLink."""
        return _address(self.host, self.port)

    @property
    def bound(self) -> str:
        """The address that the SuperLink binds to."""
        return self.listen or self.host

    @property
    def nearby(self) -> str:
        """The host under which the operator's own machine reaches the SuperLink."""
        return _LOOPBACK.get(self.bound, self.bound)

    @property
    def own_address(self) -> str:
        """Where the operator's own machine reaches the SuperLink."""
        return _address(self.nearby, self.port)

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        enrolled = self.domain.nominal_clients or 0
        if self.least_clients > enrolled:
            raise ValueError(f"only {enrolled} clients are enrolled, so {self.least_clients} never come")
        return self


@dataclass(frozen=True)
class InitOptions:
    """What an operator asks for: the method and its config, the declared images and clients, the public budget."""

    method: str
    domain: Domain
    budget: Budget
    config: Mapping[str, Any]
    host: str = "127.0.0.1"
    port: int = 9092
    listen: str | None = None
    client_budget: Budget | None = None  # None: what the contract costs a client against the server
    least_clients: int | None = None
    round_seconds: float = 120.0


def initialise(folder: Path, options: InitOptions) -> tuple[FederationConfig, Contract]:
    """Plan, agree and write everything: config, contract, certificates, keys, and a folder for every client."""
    if (folder / "server" / SETTINGS).exists():
        raise InputError(f"federation: {folder} holds one already; choose another folder")
    credentials.check_hosts(_hosts(options))
    plan = _plan(options)
    contract = get_federated_method(plan.method).contract(plan)
    federation = _federation(options, plan)
    budget = options.client_budget or _cost_to_a_client(plan)
    if contract.kind != "fedavg-gan":
        check_affordable(contract, budget)
    make_folder(folder / "server", "federation")
    credentials.write_authority(folder / "server", _hosts(options))
    for client in range(contract.limits.clients):
        _write_client(folder, contract, client, budget, federation.address)
    write_text(folder / "server" / CONTRACT, contract.to_json())
    write_app(folder / "server")
    write_text(folder / "server" / SETTINGS, json.dumps(federation.model_dump(mode="json"), indent=2) + "\n")
    return federation, contract


def _federation(options: InitOptions, plan: Plan) -> FederationConfig:
    enrolled = options.domain.nominal_clients
    least = enrolled if options.least_clients is None else options.least_clients
    try:
        return FederationConfig.model_validate({
            "method": options.method, "epsilon": options.budget.epsilon, "delta": options.budget.delta,
            "domain": options.domain, "config": plan.config.model_dump(mode="json"), "host": options.host,
            "port": options.port, "listen": options.listen, "least_clients": least,
            "round_seconds": options.round_seconds,
        })  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "least_clients"
        reason = first["msg"].removeprefix("Value error, ").lower()
        raise InputError(f"--{where.replace('_', '-')}: {reason}; pass another value") from None


def promises(federation: FederationConfig) -> list[Guarantee]:
    """What a federation will promise, by viewer: from its plan, before anything has happened."""
    method = get_method(federation.method)
    plan = method.plan(configure(method, federation.config), federation.domain, federation.budget)
    return method.claims(plan.config, plan.events, plan.budget)


def read_federation(server: Path) -> FederationConfig:
    """What a server's folder says of its federation."""
    path = server / SETTINGS
    return validated(FederationConfig, read_json(path, "federation"), f"federation: {path}", "write it with init")


def server_folder(folder: Path) -> Path:
    """The server's folder of a federation, whichever of the two was named."""
    server = folder / "server" if (folder / "server" / SETTINGS).exists() else folder
    if not (server / SETTINGS).exists():
        raise InputError(f"federation: {folder} holds none; write one with `understudy federated init`")
    return server


def client_name(client: int) -> str:
    """The name of a client's folder and key."""
    return f"client-{client:03d}"


def no_data(federation: FederationConfig) -> ImageDataset:
    """What a server holds of the clients' images: none, under the declared domain."""
    return no_records(federation.domain, "federation")


def _plan(options: InitOptions) -> Plan:
    method = get_federated_method(options.method)
    configure(method, options.config)  # says what is wrong with it before anything is laid over it
    values = overlay(options.config, {"method": {"federation": secrets.token_hex(16)}})
    plan = method.plan(configure(method, values), options.domain, options.budget)
    if plan.epsilon > options.budget.epsilon:
        raise BudgetError(
            f"budget: this plan costs epsilon {plan.epsilon:g} at delta {options.budget.delta:g}, but only "
            f"{options.budget.epsilon:g} is allowed; raise privacy.noise_multiplier or leave it out"
        )
    return plan


def _cost_to_a_client(plan: Plan) -> Budget:
    """What all answers of a client cost against the server; where nothing is promised against it, the public budget."""
    if get_federated_method(plan.method).contract(plan).kind == "fedavg-gan":
        return plan.budget
    claims = get_method(plan.method).claims(plan.config, plan.events, plan.budget)
    server = next((claim for claim in claims if claim.viewer == "server"), None)
    if server is None:
        raise InputError("client budget: this contract has no finite cost against the server; pass --client-epsilon")
    return Budget(server.epsilon, server.delta)


def _write_client(folder: Path, contract: Contract, client: int, budget: Budget, address: str) -> None:
    home = folder / "clients" / client_name(client)
    terms = ClientTerms(client=client, epsilon=budget.epsilon, delta=budget.delta, superlink=address)
    write_client(home, contract, terms)
    public = credentials.write_client_key(home)
    make_folder(folder / "server" / "clients", "federation")
    write_text(folder / "server" / "clients" / f"{client_name(client)}.pub", public)
    write_text(home / credentials.AUTHORITY, (folder / "server" / credentials.AUTHORITY).read_text())


def write_app(server: Path) -> None:
    """The app that Flower ships; anew at every start, since an earlier version wrote the names that its modules had.

    The name of the ClientApp never changes: a stock node imports it from whichever version its owner has installed.
    """
    make_folder(server / "app", "federation")
    write_text(server / "app" / "pyproject.toml", _APP)


def write_connection(server: Path, federation: FederationConfig) -> None:
    """How Flower's commands reach the SuperLink from here; anew at every start, since the folder may have moved."""
    make_folder(server / "flower", "federation")
    authority = (server / credentials.AUTHORITY).resolve()
    connection = (
        f'[superlink]\ndefault = "understudy"\n\n[superlink.understudy]\naddress = "{federation.own_address}"\n'
        f"root-certificates = {json.dumps(str(authority))}\n"
    )
    write_text(server / "flower" / "config.toml", connection)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hosts(options: InitOptions) -> list[str]:
    """Every name and address under which the server is reached."""
    return [options.host, *([options.listen] if options.listen and options.listen not in _LOOPBACK else [])]
