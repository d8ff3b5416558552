"""benchmarks/twice.py and the step of gpu.sh that calls it: what is found again, and what is told of the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEVICE = {"type": "cuda", "name": "GPU", "capability": "sm_90", "driver": "1", "uuid": "cuda-0", "key": "cuda/GPU/sm_90/1"}


def stored(folder: Path, times: dict[str, float]) -> Path:
    """An experiment with these device times by kernel."""
    rows = [{"op": "softmax", "workload": "8x8 bf16", "kernel": kernel, "config": {}, "device_time_us": us} for kernel, us in times.items()]
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"device": DEVICE, "rows": rows}))
    return folder / "results.json"


def twice(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks/twice.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=60, check=False)


@pytest.mark.parametrize(("again", "code"), [(102.9, 0), (104.0, 1)])
def test_rows_that_are_not_found_again_are_told_and_kept(again: float, code: int, tmp_path: Path) -> None:
    first, second = stored(tmp_path / "a", {"triton.row": 100.0}), stored(tmp_path / "b", {"triton.row": again})
    done = twice(tmp_path, "--first", str(first), "--second", str(second), "--save", "twice")
    assert done.returncode == code and "of the rows (1 in the first run, 1 in the second) were found again within 3%" in done.stdout
    (kept,) = (tmp_path / "experiments").glob("*-twice")
    content: dict[str, Any] = json.loads((kept / "results.json").read_text())
    assert content["share_within"] == 1 - code and len(content["rows"]) == code and content["device"]["key"] == DEVICE["key"]
    assert ("+4.0%" in (kept / "note.md").read_text()) == bool(code)


FAKE = """#!/usr/bin/env bash
case "$*" in
  *twice.py*) echo "compared: $*" ;;
  *) echo "running"; echo "saved experiments/${@: -1}" ;;
esac
"""


def test_the_step_compares_what_each_of_its_benches_saved(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("logs", "__pycache__"))
    fake = tmp_path / "python"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake), "OUT": str(tmp_path / "out"), "OPS": "rmsnorm softmax vector_add"}
    done = subprocess.run(
        ["bash", "benchmarks/gpu.sh", "twice"], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60, check=True
    )
    compared = next(line for line in done.stdout.splitlines() if line.startswith("compared:"))
    files = [[f"experiments/bench-{op}-gpu-{run}/results.json" for op in ("rmsnorm", "softmax", "vector_add")] for run in (1, 2)]
    assert compared.split()[2:] == ["--first", *files[0], "--second", *files[1], "--save", "twice-gpu"]


def test_a_step_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "OUT": str(tmp_path)}
    done = subprocess.run(["bash", str(ROOT / "benchmarks/gpu.sh"), "thrice"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and "aa twice ncu host sanitize" in done.stderr
