"""One method of a comparison in a process of its own: reads a task from stdin and brings it to its end.

It ends with the process that started it, and can be resumed.
"""

from __future__ import annotations

import json
import sys

from understudy.cli.comparison import bring_to_end
from understudy.cli.comparison_plan import Task
from understudy.errors import UnderstudyError
from understudy.processes import end_with_parent


def main() -> int:
    """The exit code of the command line; a failure is one sentence on stderr."""
    end_with_parent()
    task = Task.from_dict(json.loads(sys.stdin.buffer.readline()))
    try:
        bring_to_end(task)
    except UnderstudyError as error:
        print(f"understudy: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
