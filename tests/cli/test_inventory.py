"""`list`, `explain`, `plugins list`, `cache`: what they print, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints, alone on stdout."""
    assert run([*arguments, "--json"]) == code
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    return content


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one message of a command that refuses: nothing on stdout, no traceback."""
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_list_names_every_op_and_the_reference_kernel_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    content = answer(capsys, "list", "--device", "cpu")
    assert {"vector_add", "softmax", "rmsnorm"} <= {op["name"] for op in content["ops"]}
    for kernel in content["kernels"]:
        assert set(kernel) == {"name", "op", "backend", "plugin", "available", "reason"}
        assert kernel["name"].startswith(kernel["backend"] + ".")
        assert kernel["available"] or kernel["reason"]
    assert {k["op"] for k in content["kernels"] if k["name"] == "torch.eager"} >= {"vector_add", "softmax", "rmsnorm"}


def test_a_kernel_that_cannot_run_here_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = answer(capsys, "list", "--op", "vector_add", "--device", "cpu")["kernels"]
    cuda = [kernel for kernel in kernels if kernel["backend"] == "cuda"]
    assert cuda and not any(kernel["available"] for kernel in cuda)
    assert all("cuda" in kernel["reason"] or "GPU" in kernel["reason"] or "nvcc" in kernel["reason"] for kernel in cuda)


@pytest.mark.parametrize("command", [["--help"], ["list"], ["plugins", "list"], ["tune", "--help"], ["profile", "--help"]])
def test_looking_imports_no_heavy_package(command: list[str], home: Path) -> None:
    code = (
        "import sys; from kernelyard.cli import run; code = run(sys.argv[1:]);"
        "heavy = [name for name in ('torch', 'triton', 'jax', 'optuna', 'tvm_ffi') if name in sys.modules];"
        "print('imported:', heavy); sys.exit(bool(heavy) or code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("explain", "rmsnor"), ("rmsnor", "rmsnorm")),
        (("list", "--op", "rmsnor"), ("rmsnor", "rmsnorm")),
        (("explain", "rmsnorm", "--shape", "4x"), ("4x", "rows")),
        (("explain", "rmsnorm", "--shape", ""), ("''", "rows")),
        (("explain", "rmsnorm", "--shape", "-1x4"), ("-1x4", "rows")),
        (("explain", "rmsnorm", "--shape", "4x4x4"), ("4x4x4", "rows")),
        (("explain", "rmsnorm", "--shape", "4x4", "--dtype", "fp12"), ("fp12", "bf16")),
        (("explain", "rmsnorm", "--dtype", "bf16"), ("--shape",)),
        (("explain", "rmsnorm", "--shape", "4x4", "--matrix", "smoke"), ("--shape", "--matrix")),
        (("explain", "rmsnorm", "--matrix", "nowhere"), ("nowhere", "correctness")),
        (("explain", "rmsnorm", "--matrix", "nowhere.json"), ("nowhere.json",)),
        (("explain", "rmsnorm", "--device", "tpu"), ("tpu", "cpu")),
        (("list", "--nonsense"), ("--nonsense",)),
        (("nonsense",), ("nonsense",)),
    ],
)
def test_misuse_is_one_message_with_what_was_asked_and_what_exists(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], names: tuple[str, ...]
) -> None:
    message = refusal(capsys, *arguments)
    assert all(name in message for name in names), message


def test_a_shape_of_no_rows_is_explained_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "explain", "rmsnorm", "--shape", "0x4", "--device", "cpu")["selected"]


def test_explain_says_why_and_why_not_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    content = answer(capsys, "explain", "rmsnorm", "--shape", "16x4096", "--dtype", "fp32", "--device", "cpu")
    assert content["selected"] and content["reason"]
    assert all(set(rejected) == {"kernel", "reason"} and rejected["reason"] for rejected in content["rejected"])


def test_explain_covers_every_point_of_a_users_matrix_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    points = [{"op": "rmsnorm", "shape": [3, 5]}, {"op": "rmsnorm", "shape": [7, 9], "dtype": "bf16"}]
    file.write_text(json.dumps({"name": "mine", "points": points}))
    content = answer(capsys, "explain", "rmsnorm", "--matrix", str(file), "--device", "cpu")
    assert [w["workload"] for w in content["workloads"]] == [
        {"shapes": {"x": [3, 5], "w": [5]}, "dtype": "float32"},
        {"shapes": {"x": [7, 9], "w": [9]}, "dtype": "bfloat16"},
    ]


def test_a_pipe_that_closes_early_ends_quietly() -> None:
    command = f"'{sys.executable}' -m kernelyard list --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "{\n" and "Traceback" not in done.stderr


def test_an_empty_store_says_how_to_fill_it(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert run(["cache", "list"]) == 0
    assert "kernelyard tune" in capsys.readouterr().out
    assert answer(capsys, "cache", "list")["choices"] == []
    assert "rmsnorm" in refusal(capsys, "cache", "show", "rmsnorm")


def test_plugins_list_tells_distribution_version_and_what_each_brings(capsys: pytest.CaptureFixture[str]) -> None:
    plugins = {plugin["plugin"]: plugin for plugin in answer(capsys, "plugins", "list")["plugins"]}
    assert plugins["contracts"]["distribution"] == "kernelyard"
    assert "rmsnorm" in plugins["contracts"]["ops"]
    assert "rmsnorm: torch.eager" in plugins["eager"]["kernels"]
