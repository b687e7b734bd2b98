"""A client on a real machine: a SuperNode that keeps the connection, and code of the client's own that answers.

A stock SuperNode unpacks and runs whatever app the server, or anybody else who may start runs there, ships. Here the
SuperNode runs in ``process`` isolation, where it executes nothing and only keeps the connection, and a loop takes its
tasks and runs *our* ClientApp on them. What was shipped is never unpacked. It also saves a process per message.

``python -m understudy.federated.deployment.supernode CLIENT`` runs a client as ``understudy federated client CLIENT``
does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from understudy.errors import CheckError, InputError, UnderstudyError
from understudy.federated.client_app import FOLDER, make_client_app
from understudy.federated.deployment import credentials, processes
from understudy.federated.task import open_client, read_terms
from understudy.runs.folder import locked

_AGAIN_SECONDS = 5.0
_REFUSED_SECONDS = 600.0
_PAUSE = 0.1
_LOST_SECONDS = 3.0  # without a word from the SuperNode, which is on this machine
_TASK = "flwr-clientapp"  # Flower's name for the kind of task


def check_address(superlink: str | None) -> str:
    """The address of a server, if it is one: a SuperNode would try any other for ever."""
    if superlink is None:
        raise InputError("superlink: where the server is, is not known; pass --superlink HOST:PORT once")
    host, _, port = superlink.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"superlink: {superlink!r} is no address of a server; pass --superlink HOST:PORT")
    return superlink


def run_client(home: Path, superlink: str, say: processes.Say, *, own_code: bool = True) -> None:
    """Keep a SuperNode connected and answer its messages until interrupted."""
    processes.require_flower()
    with locked(home):  # nobody else may be at its ledger
        client = open_client(home, say)  # whatever is wrong is said now, not to the server later
    say(f"client {client.membership.client} of {client.contract.limits.clients} in a {client.contract.kind} federation")
    say(f"server {superlink}; {'installed code only' if own_code else 'STOCK: runs shipped code'}")
    try:
        with processes.terminated_like_interrupted():
            _stay_connected(home, superlink, say, own_code=own_code)
    except KeyboardInterrupt:
        say("stopped")


def _stay_connected(home: Path, superlink: str, say: processes.Say, *, own_code: bool) -> None:
    """One SuperNode after the other: none outlives its SuperLink, and a server that starts again has a new one.

    A SuperNode that is refused is tried again for a while, since the server may not have come to its key yet.
    """
    refused_since: float | None = None
    while True:
        with processes.Processes(home / "log") as started:
            node, address = start_supernode(started, home, superlink, own_code=own_code)
            if own_code:
                answer_tasks(address, home, lambda: node.poll() is None)  # noqa: B023
            code = node.wait()
        refused_since = (refused_since or time.monotonic()) if code else None
        if refused_since is not None and time.monotonic() - refused_since > _REFUSED_SECONDS:
            raise CheckError(
                f"supernode: {superlink} refuses this client, or shows another certificate; ask the operator whether "
                f"this folder is of that server, and see {home / 'log'}"
            )
        say("not accepted yet; it is tried again" if code else "the server is gone; the client waits for it")
        time.sleep(_AGAIN_SECONDS)


def start_supernode(
    started: processes.Processes, home: Path, superlink: str, *, own_code: bool = True
) -> tuple[subprocess.Popen[bytes], str]:
    """A SuperNode for a client's folder and the address at which it hands out its tasks."""
    port = processes.free_port()
    command = supernode_command(home, superlink, port, own_code=own_code)
    node = started.start("supernode", command, home / "flower")
    processes.wait_for_port("127.0.0.1", port, node, "supernode")
    return node, f"127.0.0.1:{port}"


def supernode_command(home: Path, address: str, port: int, *, own_code: bool = True) -> list[str]:
    """A SuperNode for a client's folder. ``own_code``: it runs nothing itself, and waits for an executor to ask it."""
    return [
        "flower-supernode",
        *("--superlink", address, "--root-certificates", str(home / credentials.AUTHORITY)),
        *("--auth-supernode-private-key", str(home / credentials.CLIENT_KEY)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process" if own_code else "subprocess"),
        *("--node-config", f"{FOLDER}={json.dumps(str(home))}"),
    ]


# --- answers


def answer_tasks(address: str, home: Path, alive: Callable[[], bool]) -> None:
    """Take the SuperNode's tasks one by one and answer them, as long as ``alive`` says so.

    The folder is held meanwhile: two processes at one ledger would each spend what the other does not know of.
    """
    with locked(home):
        client = open_client(home)
        app = make_client_app(lambda context: client.answer)
        node = _connect(address)
        try:
            while alive():
                _take_task(node, address, app)
        finally:
            node.close()


def _take_task(node: RuntimeHttpClient, address: str, app: ClientApp) -> None:
    """Answer the next task, or wait a moment where there is none.

    A task that cannot be taken or handed back is lost and the client goes on: the SuperNode has ended, which the caller
    sees, or the run of the task is over, or the message is none.
    """
    try:
        found = node.AcquireTask(AcquireTaskRequest(supported_task_types=[_TASK]))
        if found.HasField("task") and found.token:
            _answer(address, found.token, app)
        else:
            time.sleep(_PAUSE)
    except Exception:
        time.sleep(_PAUSE)


def _connect(address: str, token: str | None = None) -> RuntimeHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp" if token else "SuperExec")
    retries = make_simple_http_retry_invoker()
    retries.max_time = _LOST_SECONDS
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback, from this machine to itself
        root_certificates=None,
        interceptors=[version] if token is None else [version, RuntimeTokenHttpInterceptor(token)],
        retry_invoker=retries,
    )


def _answer(address: str, token: str, app: ClientApp) -> None:
    """One task: pull the message, run our app on it, push the reply; the shipped app is ignored."""
    node = _connect(address, token)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(node))
    heartbeat.start()
    context: Context | None = None
    status = SubStatus.FAILED
    try:
        message, context, _, _ = pull_task_input(node)
        push_message(node, _reply(app, message, context), context)
        status = SubStatus.COMPLETED
    finally:
        push_task_output(client=node, context=context, sub_status=status, details="")
        heartbeat.stop()
        node.close()


def _reply(app: ClientApp, message: Message, context: Context) -> Message:
    try:
        return app(message=message, context=context)
    except Exception:  # a message type that we do not know; the text of an exception stays here
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "refused"), reply_to=message)


def _main(home: Path) -> int:
    """Run the client of a folder until it is stopped."""
    try:
        run_client(home, str(read_terms(home).superlink), lambda text: print(text, file=sys.stderr))
    except UnderstudyError as error:
        print(f"understudy: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
