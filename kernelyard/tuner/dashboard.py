"""optuna-dashboard on the trials' storage, for this machine alone: whoever can reach it can delete studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from kernelyard.errors import UsageError
from kernelyard.registry.machine import installed
from kernelyard.store.database import open_store
from kernelyard.tuner import studies

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    """A browser keeps connections open beside the one it asks through; none of them keeps the process."""

    daemon_threads = True
    block_on_close = False


class _Quiet(WSGIRequestHandler):
    """A page asks several times a minute: a line each helps nobody."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def serving(storage: str | None, port: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """The dashboard's address and what serves it until it is interrupted; port 0 takes a free one.

    storage: a database URL; by default the store of this home. Raises UsageError without the package, and where the port is taken.
    """
    if not installed("optuna_dashboard"):
        raise UsageError("the dashboard needs optuna-dashboard, which is not installed.", do="pip install 'kernelyard[dashboard]'")
    import optuna_dashboard

    if storage is None:
        with open_store() as store:
            storage = f"sqlite:///{store.path}"
    app = cast(Any, optuna_dashboard.wsgi(studies.open_storage(storage)))
    try:
        server = make_server(HOST, port, app, server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        do = "Name another with --port, or 0 for a free one."
        raise UsageError(f"port {port} of {HOST} can't be had: {error.strerror}.", do=do) from error
    with server:
        yield f"http://{HOST}:{server.server_port}/", server.serve_forever
