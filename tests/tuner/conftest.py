"""The toy plugin, in this process and in every worker that it starts; a home for each test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelyard.registry import registry

TOY = Path(__file__).parent / "toy"

SCRIPT = """
import json, sys
from toy_plugin import QUICK
from kernelyard.registry import registry
from kernelyard.tuner.tune import tune
op = registry.current().op(sys.argv[1])
matrix = op.matrix("performance", "cpu")
workloads = [op.workload(point, "cpu") for point in matrix.points[:1]]
report = tune(op, workloads, "cpu", matrix=matrix, limits=QUICK, progress=lambda e: print(e.stage, flush=True))
print(json.dumps(report.to_json()))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of this module's tests, with the toy plugin in the registry."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELYARD_HOME", str(home))
        patch.setenv("KERNELYARD_EXTRA_PLUGINS", "toy_plugin:plugin")
        patch.syspath_prepend(str(TOY))
        registry.reset()
        yield home
    registry.reset()


@pytest.fixture
def start(toy: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Start a process that tunes an op and prints a line an event, the report last."""

    def spawn(op: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(TOY), *sys.path])
        command = [sys.executable, "-c", SCRIPT, op]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)

    return spawn
