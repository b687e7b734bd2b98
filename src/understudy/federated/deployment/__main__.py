"""``python -m understudy.federated.deployment CLIENT``: a client as ``understudy federated client CLIENT`` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from understudy.errors import UnderstudyError
from understudy.federated.deployment.operating import run_client
from understudy.federated.task import read_terms


def main(home: Path) -> int:
    """Run the client of a folder until it is stopped."""
    try:
        run_client(home, str(read_terms(home).superlink), lambda text: print(text, file=sys.stderr))
    except UnderstudyError as error:
        print(f"understudy: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
