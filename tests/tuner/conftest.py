"""The toy plugin, in this process and in every worker that it starts; a home for each test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelyard.measure import ceiling_file
from kernelyard.registry import registry
from kernelyard.registry.machine import identity

TOY = Path(__file__).parent / "toy"
FAST = {"measured_at": "", "copy_gbps": 1e6, "read_gbps": 1e6, "peak_gbps": 1e6}
"""A device on which no time is impossible: measuring the real ceilings takes longer than all else in most of these tests."""

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
        ceiling_file.update(identity("cpu").key(), {"rates": {"device_key": identity("cpu").key(), **FAST}})
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
