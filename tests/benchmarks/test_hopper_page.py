"""docs/hopper.md is what benchmarks/hopper_page.py makes of the stored experiments; and what it makes of some that are planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import hopper_page as page

PRODUCT = "1x4096x4096x4096 bf16"


def store(folder: Path, name: str, times: dict[tuple[str, str], float], capability: str = "sm_90") -> None:
    """An experiment with these times by workload and kernel."""
    rows: list[dict[str, Any]] = [
        {"workload": workload, "kernel": kernel, "device_time_us": us, "percent_of_ceiling": 90.0}
        for (workload, kernel), us in times.items()
    ]
    (folder / name).mkdir(parents=True)
    (folder / name / "results.json").write_text(json.dumps({"device": {"capability": capability}, "rows": rows}))


def test_the_page_and_its_picture_are_what_is_made_of_the_stored_experiments() -> None:
    found, text = page.benches(page.ROOT / "experiments"), (page.ROOT / "docs/hopper.md").read_text()
    assert text == page.filled(text, found), "run: python benchmarks/hopper_page.py"
    assert (page.ROOT / "docs/hopper.svg").read_text() == page.picture(found)
    assert text.count("<!-- made: ") == text.count("<!-- end -->") == len(page.MARK.findall(text)) > 8


def test_the_newest_bench_of_an_op_on_a_hopper_gpu_is_taken_whole(tmp_path: Path) -> None:
    store(tmp_path, "2026-01-01-bench-matmul-gpu-10", {(PRODUCT, "torch.plain"): 9.0, (PRODUCT, "triton.tile"): 9.0})
    store(tmp_path, "2026-01-02-bench-matmul-gpu", {(PRODUCT, "torch.plain"): 2.0})
    store(tmp_path, "2026-01-02-bench-matmul-gpu-2", {(PRODUCT, "quack.matmul"): 3.0})
    store(tmp_path, "2026-01-03-bench-matmul-gpu", {(PRODUCT, "torch.plain"): 1.0}, capability="sm_100")
    store(tmp_path, "2026-01-04-bench-matmul-cpu", {(PRODUCT, "torch.plain"): 1.0})
    assert [(row.kernel, row.us) for row in page.benches(tmp_path)["matmul"]] == [("quack.matmul", 3.0)]


def test_rates_follow_from_the_cost_model_and_peers_are_others(tmp_path: Path) -> None:
    store(tmp_path, "2026-01-01-bench-matmul-gpu", {(PRODUCT, "gluon.specialized"): 200.0, (PRODUCT, "quack.matmul"): 100.0})
    found = page.benches(tmp_path)
    line = page.compared("matmul")(found).splitlines()[-1]
    assert line == f"| {PRODUCT} | gluon.specialized | 200 us | {2 * 4096**3 / 200e6:.0f} TFLOP/s | 90% | quack.matmul | 100 us | 0.50x |"
    assert page.losses(found).splitlines()[-1] == f"| matmul | {PRODUCT} | gluon.specialized | quack.matmul | 0.50x |"


def test_a_fused_end_stands_beside_a_pass_of_its_own(tmp_path: Path) -> None:
    store(tmp_path, "2026-01-01-bench-matmul-gpu", {(page.ALONE, "triton.persistent"): 1000.0, (page.FUSED, "triton.persistent"): 1100.0})
    store(tmp_path, "2026-01-01-bench-vector_add-gpu", {("268435456 bf16", "triton.stream"): 6 * 2**28 / 4e6})  # at 4000 GB/s
    apart = 2 * 8192 * 14336 * 2 / 4e6
    assert page.endings(page.benches(tmp_path)).splitlines()[-1] == f"| triton.persistent | 1 ms | 1.1 ms | +100 us | {apart:.3g} us |"


def test_what_is_not_stored_says_how_to_store_it(tmp_path: Path) -> None:
    tmp_path.joinpath("2026-01-01-tune-matmul-gpu").mkdir()
    assert "kernelyard bench attention --save" in page.pipelines(page.benches(tmp_path))


def test_the_picture_has_our_best_kernel_of_each_op(tmp_path: Path) -> None:
    workload = "268435456 bf16"
    store(tmp_path, "2026-01-01-bench-vector_add-gpu", {(workload, "triton.stream"): 400.0, (workload, "torch.eager"): 390.0})
    drawn = page.picture(page.benches(tmp_path))
    ElementTree.fromstring(drawn)
    assert "vector_add 268435456 bf16, triton.stream" in drawn and "torch.eager" not in drawn


@pytest.mark.parametrize("kernel", ["triton.row", "cuda.row", "gluon.specialized"])
def test_our_backends_are_ours(kernel: str) -> None:
    assert page.Row("", kernel, 1.0, None, None).ours and not page.Row("", "torch.plain", 1.0, None, None).ours
