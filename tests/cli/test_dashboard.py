"""`dashboard` serves the store's studies to this machine, ends when told, and says what is missing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.store.database import open_store
from kernelyard.tuner import studies


def test_it_lists_the_studies_of_the_store_and_ends_when_interrupted(home: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    optuna = pytest.importorskip("optuna")
    with open_store() as store:
        optuna.create_study(storage=studies.open_storage(f"sqlite:///{store.path}"), study_name="rmsnorm 16x512 fp32 cpp.onepass #1")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kernelyard", "dashboard", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert "Ctrl-C ends it" in process.stderr.readline()
            address = json.loads("".join(process.stdout.readline() for _ in range(4)))["address"]
            assert address.startswith("http://127.0.0.1:")
            page, (study,) = fetched(address), json.loads(fetched(f"{address}api/studies"))["study_summaries"]
            assert "<html" in page.lower() and study["study_name"] == "rmsnorm 16x512 fp32 cpp.onepass #1"
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0 and told == "the dashboard has ended\n"


def fetched(address: str) -> str:
    """What is served there, with status 200 for everything else raises."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: Any = opener.open(address, timeout=30)
    with answer:
        return str(answer.read().decode())


def test_without_the_package_it_says_which_extra_brings_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelyard.tuner.dashboard.installed", lambda package: False)
    assert run(["dashboard"]) == 2
    assert "pip install 'kernelyard[dashboard]'" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["dashboard", "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 can't be had" in capsys.readouterr().err
