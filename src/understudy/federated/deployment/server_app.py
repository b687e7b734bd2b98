"""The Flower ServerApp: serves the federation whose folder the run's config names."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from understudy.federated.deployment.serving import serve_and_tell

FOLDER = "understudy-server"


def make_server_app(folder: Path | None = None) -> ServerApp:
    """An app that serves ``folder``, or the one that the run's config names."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve_and_tell(folder or Path(str(context.run_config[FOLDER])), grid)

    return app


app = make_server_app()
