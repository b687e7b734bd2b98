"""One method of a comparison in a process of its own: reads a task from stdin and brings it to its end.

Stdin stays open as long as the process that started this one lives; where it ends, this one stops and can be resumed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from understudy.cli.comparison import bring_to_end
from understudy.cli.comparison_plan import Task
from understudy.errors import UnderstudyError


def main() -> int:
    """The exit code of the command line; a failure is one sentence on stderr."""
    task = Task.from_dict(json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    try:
        bring_to_end(task)
    except UnderstudyError as error:
        print(f"understudy: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _stop_with_the_parent() -> None:
    while os.read(0, 1):  # not through sys.stdin, whose lock the end of the interpreter needs
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
