"""`traffic`: what it prints, when it says no, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelyard.cli import run
from kernelyard.registry import registry
from kernelyard.registry.machine import installed

PLANTED = Path(__file__).parents[1] / "plugins" / "planted"
needs_triton = pytest.mark.skipif(not installed("triton"), reason="triton is not installed")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The planted kernels in the registry."""
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "planted_plugin:plugin")
    monkeypatch.syspath_prepend(str(PLANTED))
    registry.reset()
    yield
    monkeypatch.undo()
    registry.reset()


@needs_triton
@pytest.mark.timeout(300)
def test_softmax_moves_what_its_model_says_and_the_compiled_kernel_stands_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("traffic", "softmax", "--kernel", "triton.row", "--shape", "16x1000", "--dtype", "bf16", "--config", "num_warps=2")
    assert run([*command, "--explain", "--program", "3", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1 and content["config"]["num_warps"] == content["num_warps"] == 2
    assert content["totals"]["unique_ratio"] == pytest.approx(1, rel=0.01) and content["totals"]["model_bytes"] == 2 * 2 * 16 * 1000
    assert [(one["kind"], one["tensor"], one["programs"]) for one in content["instructions"]] == [("load", "x", 16), ("store", "y", 16)]
    assert content["resources"]["registers"] > 0 and content["resources"]["load_bytes"] == 16
    assert content["explained"]["program"] == [3, 0, 0] and content["explained"]["lanes"][1]["offsets"][0] == 3 * 2000 + 16
    assert content["findings"] == []


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("planted")
def test_a_fault_is_a_sentence_and_the_answer_is_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traffic", "vector_add", "--kernel", "triton.shifted", "--shape", "1000", "--dtype", "fp32", "--explain"]) == 1
    printed = capsys.readouterr().out
    assert "out-of-bounds: line " in printed and "3 past its end" in printed and "in program (3, 0, 0)" in printed
    assert "registers a thread" in printed and "masked" in printed
    assert "program 0,0,0, warp 0, first request" in printed
    lane_1 = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["1"])
    assert lane_1[:4] == ["1", "5", "20-23", "0"]
    assert "A lane moves" in printed and "sectors" in printed


@needs_triton
@pytest.mark.usefixtures("planted")
def test_resources_that_can_not_be_told_are_given_a_reason_and_hold_up_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelyard.cli import traffic
    from kernelyard.errors import BuildFailed
    from kernelyard.measure import traffic_jobs

    traced = {"instructions": [], "tensors": [], "findings": [], "explained": None, "grid": [1, 1, 1], "num_warps": 4, "function": "f",
              "totals": {"unique_bytes": 0, "requested_bytes": 0, "model_bytes": 0}}  # fmt: skip

    def job(name: str, *rest: object) -> dict[str, object]:
        if name == traffic_jobs.COMPILE:
            raise BuildFailed("Triton can't compile f.", log="no ptxas")
        return traced

    monkeypatch.setattr(traffic, "_job", job)
    assert run(["traffic", "vector_add", "--kernel", "triton.shifted", "--shape", "8", "--dtype", "fp32"]) == 0
    assert "Compiled for sm_90: not known. Triton can't compile f. no ptxas" in capsys.readouterr().out


@needs_triton
def test_without_a_shape_a_point_of_the_performance_matrix_is_taken_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelyard.cli import traffic_choice
    from kernelyard.registry.op import Point

    everything = registry.current()
    op, kernel = everything.op("softmax"), everything.kernel("softmax", "triton.row")
    point = traffic_choice.traced_point(everything, op, kernel, "cuda", None, None)
    assert point in op.matrix("performance", "cuda").points
    assert "from performance/cuda" in capsys.readouterr().err
    monkeypatch.setattr(traffic_choice, "SOON_BYTES", 4096 * 2)
    halved = Point((1, 2048), "bfloat16")
    assert traffic_choice.traced_point(everything, op, kernel, "cuda", None, None) == halved, "the longest size"
    monkeypatch.setattr(traffic_choice, "SOON_BYTES", 1024)
    add, stream = everything.op("vector_add"), everything.kernel("vector_add", "triton.stream")
    assert traffic_choice.traced_point(everything, add, stream, "cuda", None, None).dims[0] == 128


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (("vector_add", "--kernel", "torch.eager"), 1, ("torch.eager can't be traced", "Backends that can", "triton")),
        (("vector_add", "--kernel", "triton.nothing"), 2, ("triton.nothing", "triton.stream")),
        (("nothing", "--kernel", "triton.row"), 2, ("nothing",)),
        (("softmax",), 2, ("--kernel",)),
        (("softmax", "--kernel", "triton.row", "--line", "3"), 2, ("--explain",)),
        (("softmax", "--kernel", "triton.row", "--explain", "--program", "x"), 2, ("--program 3",)),
        (("softmax", "--kernel", "triton.row", "--shape", "8"), 2, ("rowsxcols",)),
        (("softmax", "--kernel", "triton.row", "--shape", "1x65536", "--dtype", "bf16"), 1, ("cols is 65536", "16384")),
        (("softmax", "--kernel", "triton.row", "--shape", "4x64", "--dtype", "bf16", "--config", "warps=2"), 2, ("num_warps=1, 2",)),
        (("softmax", "--kernel", "triton.row", "--shape", "4x64", "--dtype", "bf16", "--config", "num_warps=3"), 2, ("num_warps=3",)),
        (("softmax", "--kernel", "triton.row", "--shape", "4x64", "--dtype", "bf16", "--config", "num_warps=32"), 2, ("idle",)),
    ],
)
@needs_triton
def test_refusals_are_one_message_before_any_work(
    arguments: tuple[str, ...], code: int, names: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelyard.cli import traffic

    monkeypatch.setattr(traffic, "_job", lambda *_: pytest.fail("work was begun"))
    assert run(["traffic", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert all(name in captured.err for name in names), captured.err
