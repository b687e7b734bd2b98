"""What a campaign writes beside its figures: the day, the commit, the machine and the command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from datetime import UTC, datetime


def provenance(module: str, arguments: list[str]) -> dict[str, str]:
    """Where a result comes from; ``arguments`` are those that were given to ``python -m module``."""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} CPU cores, {system}",
        "command": shlex.join(["python", "-m", module, *arguments]),
    }


def _commit() -> str:
    """The commit of the code, with a mark where the code has changes; results of other campaigns are no code."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        changes = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "tests"], capture_output=True)
    except OSError:  # a machine without git
        return "unknown"
    return f"{commit}{'-dirty' if changes.returncode else ''}" if commit else "unknown"
