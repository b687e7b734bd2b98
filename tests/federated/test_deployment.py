"""Setting up a federation, and real Flower processes on loopback with the faults that only they can have."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra [federated] is not installed")

from understudy.data.npz import write_arrays
from understudy.errors import BudgetError, CheckError, InputError
from understudy.federated.client_app import FOLDER, app
from understudy.federated.contract import read_contract
from understudy.federated.deployment import credentials, processes, supernode
from understudy.federated.deployment.federation import (
    InitOptions,
    client_name,
    initialise,
    read_federation,
    server_folder,
)
from understudy.federated.deployment.server_app import read_nodes, serve, serve_and_tell
from understudy.federated.deployment.superlink import (
    raise_failure,
    start_serverapp,
    start_superlink,
    superlink_command,
    wait_for_outcome,
)
from understudy.federated.deployment.supernode import answer_tasks, start_supernode, supernode_command
from understudy.federated.task import open_client, read_spending, read_terms, write_terms
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify
from understudy.runs.folder import locked

from .helpers import BUDGET, CLIENTS, federated_data, members, tiny_config
from .in_process_grid import InProcessGrid
from .test_fedavg import CONFIG as FEDAVG

EARLIER = Path(__file__).parents[1] / "fixtures" / "e25aeaa"


def set_up(folder: Path, method: str = "gs-wgan-federated", config: dict | None = None, **changes) -> Path:
    """A federation of three with data at every client; returns the server's folder."""
    data = federated_data()
    request = {"port": processes.free_port(), "round_seconds": 60.0, **changes}
    initialise(folder, InitOptions(method, data.domain, BUDGET, config or tiny_config(), **request))
    for client in range(CLIENTS):
        home, own = folder / "clients" / client_name(client), members(data, client)
        write_arrays(home / "data.npz", {"x": own.images[:, 0], "y": own.labels})
        write_terms(home, read_terms(home).model_copy(update={"source": str(home / "data.npz")}))
    return folder / "server"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return set_up(tmp_path_factory.mktemp("federation"))


# Setting up


def test_init_writes_the_same_contract_for_all_and_a_key_for_each(server):
    contracts = {path.read_bytes() for path in server.parent.rglob("contract.json")}
    assert len(contracts) == 1
    keys = [(server.parent / "clients" / client_name(client) / "key").read_bytes() for client in range(CLIENTS)]
    assert len(set(keys)) == CLIENTS
    public = [path.read_text() for path in sorted((server / "clients").iterdir())]
    assert len(set(public)) == CLIENTS
    assert all(line.startswith("ecdsa-sha2-nistp384 ") for line in public)


def test_secrets_can_be_read_by_their_owner_only_and_the_server_has_no_clients_key(server):
    secrets = [server / "server.key", *(server.parent / "clients").rglob("key")]
    assert len(secrets) == 1 + CLIENTS
    assert all((path.stat().st_mode & 0o077) == 0 for path in secrets)
    assert not list(server.rglob("key"))
    assert not list(server.parent.rglob("ca.key"))


def test_a_client_may_spend_what_the_contract_can_ask_of_it_unless_it_says_otherwise(server, tmp_path):
    contract = read_contract(server / "contract.json")
    spent = read_spending(server.parent / "clients" / client_name(0))
    assert (spent["answers"], spent["epsilon"], spent["most_answers"]) == (0, 0.0, contract.limits.answers)
    assert spent["most_epsilon"] > BUDGET.epsilon / 10
    generous = set_up(tmp_path, client_budget=Budget(900.0, 1e-5))
    assert read_terms(generous.parent / "clients" / client_name(0)).epsilon == 900.0


def test_clients_whose_budget_is_below_the_contract_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BudgetError, match="do not take part"):
        set_up(tmp_path, client_budget=Budget(0.9, 1e-5))
    assert not list(tmp_path.rglob("contract.json"))


def test_the_app_that_travels_names_our_apps_and_holds_no_code(server):
    assert [path.name for path in (server / "app").iterdir()] == ["pyproject.toml"]
    text = (server / "app" / "pyproject.toml").read_text()
    assert 'clientapp = "understudy.federated.client_app:app"' in text
    assert re.search(r"dependencies = \[\]", text)


def test_a_federation_is_never_overwritten_and_bad_requests_are_one_sentence(server, tmp_path):
    request = InitOptions("gs-wgan-federated", federated_data().domain, BUDGET, tiny_config())
    with pytest.raises(InputError, match="holds one already"):
        initialise(server.parent, request)
    with pytest.raises(InputError, match="cannot be federated"):
        initialise(tmp_path / "a", InitOptions("dp-merf", federated_data().domain, BUDGET, {}))
    costly = tiny_config(privacy={"noise_multiplier": 0.1, "queries": 48, "slots": 12})
    with pytest.raises(BudgetError, match="only 10 is allowed"):
        initialise(tmp_path / "b", InitOptions("gs-wgan-federated", federated_data().domain, BUDGET, costly))
    with pytest.raises(InputError, match="holds none"):
        server_folder(tmp_path)


def test_flower_is_told_to_phone_nobody_and_to_install_nothing(server):
    environment = processes.environment(server)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    command = superlink_command(server, read_federation(server))
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    node = supernode_command(server, "127.0.0.1:1", 2)
    assert "--insecure" not in node
    assert node[node.index("--isolation") + 1] == "process"


def test_the_server_trains_with_whom_the_grid_has_and_goes_on_where_it_stopped(tmp_path):
    """The ServerApp's own code on a grid in this process; the second start finds a finished run and says so."""
    server = set_up(tmp_path)
    configs = {
        100 + client: {FOLDER: str(tmp_path / "clients" / client_name(client)), "partition-id": client}
        for client in range(CLIENTS)
    }
    serve(server, InProcessGrid(app, configs))
    assert verify(server / "run").passed
    answered = [read_spending(tmp_path / "clients" / client_name(client))["answers"] for client in range(CLIENTS)]
    assert sum(answered) == Ledger.open(server / "run" / "ledger.jsonl").events()[0].executed == 48


def test_the_baseline_is_served_by_the_same_apps(tmp_path):
    server = set_up(tmp_path, "fedavg-gan", FEDAVG)
    configs = {
        100 + client: {FOLDER: str(tmp_path / "clients" / client_name(client)), "partition-id": client}
        for client in range(CLIENTS)
    }
    grid = InProcessGrid(app, configs)
    serve(server, grid)
    assert verify(server / "run").passed
    assert grid.captured


@pytest.mark.slow
def test_a_server_may_listen_elsewhere_than_its_clients_know_it(tmp_path):
    """Behind a router the address that clients know is not one of the machine's own."""
    server = set_up(tmp_path / "there", host="federation.example.org", listen="0.0.0.0")
    federation = read_federation(server)
    assert read_terms(tmp_path / "there" / "clients" / client_name(0)).superlink == federation.address
    assert federation.address == f"federation.example.org:{federation.port}"
    command = superlink_command(server, federation)
    assert command[command.index("--host") + 1] == "0.0.0.0"
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "there", moved)
    with processes.Processes(tmp_path / "log") as started:
        start_superlink(started, moved / "server", federation, lambda text: None)
        assert sorted(read_nodes(moved / "server")) == [0, 1, 2], "reached by TLS, from where the folder is now"
        with pytest.raises(InputError, match=r"something listens on 127\.0\.0\.1:\d+ already"):
            start_superlink(started, moved / "server", federation, lambda text: None)


def test_addresses_with_colons_are_written_in_brackets(tmp_path):
    assert read_federation(set_up(tmp_path, host="::1", port=9092)).address == "[::1]:9092"


def test_damaged_nodes_are_one_sentence(server):
    (server / "nodes.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="is damaged"):
        read_nodes(server)
    (server / "nodes.json").unlink()


# Real processes


class Clients:
    """Our own executors for some clients, in threads of this process, each behind a real SuperNode."""

    def __init__(self, started: processes.Processes, folder: Path, address: str) -> None:
        self.started, self.folder, self.address, self.over = started, folder, address, threading.Event()
        self.nodes: list[subprocess.Popen[bytes]] = []

    def add(self, client: int, home: Path | None = None) -> None:
        home = home or self.folder / "clients" / client_name(client)
        node, address = start_supernode(self.started, home, self.address)
        self.nodes.append(node)
        alive = lambda: node.poll() is None and not self.over.is_set()  # noqa: E731
        threading.Thread(target=self._answer, args=(address, home, alive), daemon=True).start()

    def _answer(self, address: str, home: Path, alive) -> None:
        try:
            answer_tasks(address, home, alive)
        except Exception:
            assert self.over.is_set() or not alive(), "an executor ends with its node only"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_real_processes_train_and_shut_out_strangers_plain_text_and_wrong_certificates(tmp_path):
    """A SuperLink and SuperNodes with TLS and authentication; one client dies on the way and the rest goes on.

    The app to ship is one that an earlier version wrote: it names a ServerApp that is elsewhere now.
    """
    server = set_up(tmp_path, least_clients=2, round_seconds=20.0)
    shutil.copytree(EARLIER / "federation" / "server" / "app", server / "app", dirs_exist_ok=True)
    federation = read_federation(server)
    with processes.Processes(tmp_path / "log") as started:
        superlink = start_superlink(started, server, federation, lambda text: None)
        clients = Clients(started, tmp_path, federation.address)
        for client in (0, 1):  # client 2 never comes
            clients.add(client)

        # plain text to the TLS port
        with socket.create_connection((federation.host, federation.port), timeout=10) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"200" not in plain.recv(1000)
        # a certificate of another authority
        (tmp_path / "other").mkdir()
        credentials.write_authority(tmp_path / "other", ["127.0.0.1"])
        trusting = ssl.create_default_context(cafile=str(tmp_path / "other" / credentials.AUTHORITY))
        with (
            socket.create_connection((federation.host, federation.port), timeout=10) as raw,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            trusting.wrap_socket(raw, server_hostname="127.0.0.1")
        # a node whose key nobody registered
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        credentials.write_client_key(stranger)
        (stranger / credentials.AUTHORITY).write_bytes((server / credentials.AUTHORITY).read_bytes())
        command = supernode_command(stranger, federation.address, processes.free_port())
        unknown = started.start("stranger", command, stranger / "flower")

        start_serverapp(server)
        while not (server / "run" / "progress.jsonl").exists():
            assert superlink.poll() is None
            time.sleep(0.2)
        os.killpg(clients.nodes[1].pid, signal.SIGKILL)
        wait_for_outcome(server, superlink)
        clients.over.set()
        assert unknown.wait(30) != 0, "a node that is not enrolled is sent away"
    assert verify(server / "run").passed
    event = Ledger.open(server / "run" / "ledger.jsonl").events()[0]
    assert event.executed == event.planned == 48, "lost answers are spent like any other"
    assert read_spending(tmp_path / "clients" / client_name(0))["answers"] > 0
    assert read_spending(tmp_path / "clients" / client_name(2))["answers"] == 0
    assert all(process.poll() is not None for process in started._running)
    unpacked = [path for home in (tmp_path / "clients").iterdir() for path in (home / "flower").rglob("*.*")]
    assert not [path for path in unpacked if path.suffix in (".py", ".toml", ".fab")], "nothing shipped is unpacked"


def test_a_superlink_that_cannot_listen_is_one_sentence(tmp_path):
    server = set_up(tmp_path)
    federation = read_federation(server)
    with socket.socket() as taken:
        taken.bind((federation.host, federation.port))
        with (
            processes.Processes(tmp_path / "log") as started,
            pytest.raises(CheckError, match="superlink: it ended with"),
        ):
            start_superlink(started, server, federation, lambda text: None)


def test_stopping_stops_what_a_process_started_itself(tmp_path):
    script = (
        "import subprocess, sys, time; wait = 'import time; time.sleep(99)'; "
        "print(subprocess.Popen([sys.executable, '-c', wait]).pid, flush=True); time.sleep(99)"
    )
    with processes.Processes(tmp_path) as started:
        started.start("parent", [sys.executable, "-c", script], tmp_path)
        while not (tmp_path / "parent.log").read_text().strip():
            time.sleep(0.05)
        child = int((tmp_path / "parent.log").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_what_was_started_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path):
    """A SuperLink that is left over holds its port, and a SuperNode the place of its client."""
    script = (
        "import sys, time; from pathlib import Path; from understudy.federated.deployment.processes import Processes\n"
        "with Processes(Path(sys.argv[1])) as started:\n"
        "    wait = 'import os, time; print(os.getpid(), flush=True); time.sleep(99)'\n"
        "    started.start('child', [sys.executable, '-c', wait], Path(sys.argv[1]))\n"
        "    time.sleep(99)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    log = tmp_path / "child.log"
    while not (log.exists() and log.read_text().strip()):
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    ends = time.monotonic() + 20
    while alive(int(log.read_text())):
        assert time.monotonic() < ends, "it outlived its parent"
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_ended_by_itself_is_known_by_its_code(tmp_path):
    with processes.Processes(tmp_path) as started:
        assert started.start("seven", [sys.executable, "-c", "raise SystemExit(7)"], tmp_path).wait(20) == 7


def test_the_outcome_of_a_failed_run_is_raised_as_its_own_sentence(tmp_path):
    (tmp_path / "outcome.json").write_text(
        json.dumps({"done": False, "error": "federation: nobody came", "exit_code": 1})
    )
    with processes.Processes(tmp_path) as started:
        running = started.start("sleep", [sys.executable, "-c", "import time; time.sleep(99)"], tmp_path)
        with pytest.raises(CheckError, match="nobody came"):
            wait_for_outcome(tmp_path, running)


def test_a_server_whose_process_was_killed_does_not_wait_for_ever(tmp_path):
    """The ServerApp is a process of Flower's: nobody tells whoever waits for it that it is gone."""
    script = (
        "import os, signal, sys; from pathlib import Path; from understudy.federated.deployment import server_app\n"
        "server_app.serve = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "server_app.serve_and_tell(Path(sys.argv[1]), None)\n"
    )
    with processes.Processes(tmp_path) as started:
        running = started.start("sleep", [sys.executable, "-c", "import time; time.sleep(99)"], tmp_path)
        started.start("app", [sys.executable, "-c", script, str(tmp_path)], tmp_path)
        with pytest.raises(CheckError, match="ended from outside, perhaps for want of memory"):
            wait_for_outcome(tmp_path, running)


def test_a_second_server_on_one_folder_is_told_so(tmp_path):
    with locked(tmp_path):
        serve_and_tell(tmp_path, None)
    with pytest.raises(CheckError, match="another process is working in"):
        raise_failure(tmp_path)


def test_a_client_without_data_or_with_damaged_terms_says_so(server, tmp_path):
    home = server.parent / "clients" / client_name(0)
    terms = read_terms(home)
    write_terms(tmp_path, terms.model_copy(update={"source": None}))
    (tmp_path / "contract.json").write_bytes((home / "contract.json").read_bytes())
    with pytest.raises(InputError, match="pass --data PATH once"):
        open_client(tmp_path)
    (tmp_path / "client.json").write_text('{"client": -1}')
    with pytest.raises(InputError, match="write it anew with init"):
        read_terms(tmp_path)
    (tmp_path / "contract.json").write_text('{"kind": "x"}')
    with pytest.raises(InputError, match="ask the operator for the contract"):
        read_contract(tmp_path / "contract.json")


class Connections:
    """SuperNodes that end with given codes, in place of real ones; Ctrl-C is pressed when there are no more."""

    def __init__(self, *codes: int) -> None:
        self._codes, self.told = list(codes), []

    def start(self, started, home, superlink, *, own_code):
        if not self._codes:
            raise KeyboardInterrupt
        script = f"raise SystemExit({self._codes.pop(0)})"
        return started.start("supernode", [sys.executable, "-c", script], home), "127.0.0.1:1"


@pytest.fixture
def connected(server, monkeypatch, tmp_path):
    """Runs client 0 over SuperNodes that end with the given codes; says what its owner is told."""

    def run(*codes: int) -> list[str]:
        nodes = Connections(*codes)
        monkeypatch.setattr(supernode, "start_supernode", nodes.start)
        monkeypatch.setattr(supernode, "_AGAIN_SECONDS", 0.0)
        supernode.run_client(server.parent / "clients" / client_name(0), "127.0.0.1:1", nodes.told.append)
        return nodes.told[2:]

    return run


def test_a_client_waits_for_a_server_that_was_started_again_or_does_not_know_it_yet(connected):
    """A SuperNode does not outlive its SuperLink, and a server registers its clients one by one."""
    lost, refused = "the server is gone; the client waits for it", "not accepted yet; it is tried again"
    assert connected(0, 1, 1, 0) == [lost, refused, refused, lost, "stopped"]


def test_a_client_that_is_refused_for_good_says_so(connected, monkeypatch):
    monkeypatch.setattr(supernode, "_REFUSED_SECONDS", 0.0)
    with pytest.raises(CheckError, match="refuses this client, or shows another certificate; ask the operator"):
        connected(0, 1, 1, 1)


def test_a_second_process_at_one_client_is_refused_before_it_opens_the_ledger(server):
    home = server.parent / "clients" / client_name(1)
    with locked(home), pytest.raises(InputError, match="another process is working in"):
        supernode.run_client(home, "127.0.0.1:1", lambda text: None)
    assert not (home / "private").exists()


def test_an_executor_ends_with_its_supernode(server, monkeypatch):
    monkeypatch.setattr(supernode, "_LOST_SECONDS", 0.5)
    left = iter([True, True])
    address = f"127.0.0.1:{processes.free_port()}"
    answer_tasks(address, server.parent / "clients" / client_name(2), lambda: next(left, False))


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_flowers_own_simulation_trains_the_same_federation(tmp_path):
    """In a process of its own: the engine keeps processes and global settings."""
    pytest.importorskip("ray", reason="Flower's simulation engine is not installed: pip install 'flwr[simulation]'")
    server = set_up(tmp_path)
    script = "import sys; from pathlib import Path; from understudy.federated.deployment import demonstration as d; "
    script += "d.run_flower_simulation(Path(sys.argv[1]))"
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=250, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert verify(server / "run").passed
    answered = [read_spending(tmp_path / "clients" / client_name(client))["answers"] for client in range(CLIENTS)]
    assert sum(answered) == 48
