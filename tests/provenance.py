"""What a campaign writes beside its figures: the day, the commit, the machine and the command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from datetime import UTC, datetime


def provenance(module: str, arguments: list[str]) -> dict[str, str]:
    """Where a result comes from; ``arguments`` are those that were given to ``python -m module``."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit or "unknown",
        "machine": f"{os.cpu_count()} CPU cores, {system}",
        "command": shlex.join(["python", "-m", module, *arguments]),
    }
