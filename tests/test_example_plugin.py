"""The plugin under examples/, as pip would have installed it: kernelyard has no line about it, and serves it all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.registry import current

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "kernelyard-example"
ENTRY_POINT = "[kernelyard.plugins]\nexample = kernelyard_example:plugin\n"


@pytest.fixture
def installed(stocked_home: Path, tmp_path: Path) -> dict[str, str]:
    """An environment in which the example is installed: its metadata and its package on the path, as an editable install lays them."""
    metadata = tmp_path / "site" / "kernelyard_example-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kernelyard-example\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    path = os.pathsep.join(filter(None, (str(metadata.parent), str(EXAMPLE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def kernelyard(environment: dict[str, str], *arguments: str) -> Any:
    """What `kernelyard ARGUMENTS --json` printed."""
    command = [sys.executable, "-m", "kernelyard", *arguments, "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def names(listing: Any) -> set[tuple[str, str]]:
    return {(kernel["op"], kernel["name"]) for kernel in listing["kernels"] if kernel["plugin"] == "example"}


def test_its_kernels_and_its_op_are_listed_while_it_is_installed(installed: dict[str, str]):
    listing = kernelyard(installed, "list")
    assert names(listing) == {("rmsnorm", "cpp.example_lanes"), ("squared_relu", "cpp.onepass"), ("squared_relu", "torch.eager")}
    assert not names(kernelyard(dict(os.environ), "list"))


@pytest.mark.parametrize(("op", "kernel", "shape"), [("rmsnorm", "cpp.example_lanes", "7x129"), ("squared_relu", "cpp.onepass", "4097")])
def test_its_kernels_are_right(installed: dict[str, str], op: str, kernel: str, shape: str):
    if not (answer := current().backend("cpp").available("cpu")):
        pytest.skip(answer.reason)
    checked = kernelyard(installed, "check", op, "--kernel", kernel, "--shape", shape, "--dtype", "fp32", "--device", "cpu")
    assert checked["cases"] > 0
    assert checked["failures"] == []


def test_it_knows_only_the_registry():
    imported = [
        line
        for path in (EXAMPLE / "kernelyard_example").glob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith(("from kernelyard.", "import kernelyard."))
    ]
    allowed = ("from kernelyard.registry.", "from kernelyard.errors ")
    assert imported
    assert [line for line in imported if not line.startswith(allowed)] == []
