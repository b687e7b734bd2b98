"""A client that runs only code which it installed itself.

A stock SuperNode unpacks and runs whatever app the server, or anybody else who may start runs there, ships. Here the
SuperNode runs in ``process`` isolation, where it executes nothing and only keeps the connection, and this loop takes
its tasks and runs *our* ClientApp on them. What was shipped is never unpacked. It also saves a process per message.
"""

from __future__ import annotations

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

from understudy.federated.client_app import make_client_app
from understudy.federated.task import open_client
from understudy.runs.run import locked

_PAUSE = 0.1
_LOST_SECONDS = 3.0  # without a word from the SuperNode, which is on this machine
_TASK = "flwr-clientapp"  # Flower's name for the kind of task


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
