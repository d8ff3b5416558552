"""`tune --bucket` from the command line: what it refuses before it measures, and one path on real C++ kernels up to `explain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--bucket", "0"], "'0' is no percentage"),
        (["--bucket", "101%"], "'101%' is no percentage"),
        (["--bucket", "nan"], "'nan' is no percentage"),
        (["--bucket", "rmsnorm"], "'rmsnorm' is no percentage"),
        (["--held-out"], "Add --bucket"),
        (["--bucket", "--shape", "16x4096"], "There are 1 workload of 1 dtypes"),
        (["--bucket", "--shape", "16x4096", "--shape", "16x4096:transposed"], "differ in sizes alone"),
        (["--bucket", "--shape", "16x4096", "--shape", "16x4096"], "differ in sizes alone"),
    ],
)
def test_a_bucket_that_can_not_be_meant_is_refused_before_anything_is_measured(
    arguments: list[str], told: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "rmsnorm", *arguments, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.out == "" and "Traceback" not in captured.err


@pytest.mark.timeout(600)
def test_two_shapes_of_a_real_kernel_make_a_rule_that_explain_and_cache_show_tell_of(measured_home: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "KERNELYARD_PLUGINS": "-compiled"}  # Inductor takes longest, and is in no bucket

    def yard(*arguments: str) -> Any:
        command = [sys.executable, "-m", "kernelyard", *arguments, "--json"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout)

    shapes = ("--shape", "4096", "--shape", "262144", "--dtype", "fp32")
    asked = ("tune", "vector_add", "--kernel", "cpp.stream", "--device", "cpu", *shapes, "--trials", "2", "--bucket", "100%")
    made = yard(*asked)["bucket"]
    assert {row["workload"] for row in made["workloads"]} == {"4096 fp32", "262144 fp32"}
    assert all(row["loss"] <= 1.0 for row in made["workloads"]) and made["pairs"]
    if not made["kept"]:  # on a busy machine plain torch, which serves untuned, may measure no slower
        assert yard("cache", "show", "vector_add")["rules"] == []
        return
    assert yard(*asked)["bucket"]["from_cache"]
    (rule,) = yard("cache", "show", "vector_add")["rules"]
    assert rule["stale"] == "" and rule["pairs"] == made["pairs"] and len(rule["measured"]) == 2
    selected = yard("explain", "vector_add", "--shape", "8192", "--dtype", "fp32", "--device", "cpu")
    assert {"kernel": selected["selected"], "config": selected["config"]} in made["pairs"]
    assert "chosen by the rule of bucket 100%" in selected["reason"] and "nearest tuned workload 4096 fp32" in selected["reason"]
