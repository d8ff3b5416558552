"""docs/hopper.md is what benchmarks/hopper_page.py makes of the stored experiments; and what it makes of some that are planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import hopper_page as page
from benchmarks.hopper import arithmetic, tables, words
from benchmarks.hopper.rows import Row, benches

PRODUCT = "1x4096x4096x4096 bf16"


def store(folder: Path, name: str, times: dict[tuple[str, str], float], capability: str = "sm_90") -> None:
    """An experiment with these times by workload and kernel."""
    rows: list[dict[str, Any]] = [
        {"workload": workload, "kernel": kernel, "device_time_us": us, "low_us": us * 0.99, "high_us": us * 1.01, "percent_of_ceiling": 90}
        for (workload, kernel), us in times.items()
    ]
    (folder / name).mkdir(parents=True)
    (folder / name / "results.json").write_text(json.dumps({"device": {"capability": capability}, "rows": rows}))


def test_the_page_and_its_picture_are_what_is_made_of_the_stored_experiments() -> None:
    found, text = benches(page.ROOT / "experiments"), (page.ROOT / "docs/hopper.md").read_text()
    assert text == page.filled(text, found), "run: python -m benchmarks.hopper_page"
    assert (page.ROOT / "docs/hopper.svg").read_text() == page.picture(found)
    assert text.count("<!-- made: ") == text.count("<!-- end -->") == len(page.MARK.findall(text)) > 8


def test_the_newest_bench_of_an_op_on_a_hopper_gpu_is_taken_whole(tmp_path: Path) -> None:
    store(tmp_path, "2026-01-01-bench-matmul-gpu-10", {(PRODUCT, "torch.plain"): 9.0, (PRODUCT, "triton.tile"): 9.0})
    store(tmp_path, "2026-01-02-bench-matmul-gpu", {(PRODUCT, "torch.plain"): 2.0})
    store(tmp_path, "2026-01-02-bench-matmul-gpu-2", {(PRODUCT, "quack.matmul"): 3.0})
    store(tmp_path, "2026-01-03-bench-matmul-gpu", {(PRODUCT, "torch.plain"): 1.0}, capability="sm_100")
    store(tmp_path, "2026-01-04-bench-matmul-cpu", {(PRODUCT, "torch.plain"): 1.0})
    assert [(row.kernel, row.us) for row in benches(tmp_path)["matmul"]] == [("quack.matmul", 3.0)]


def test_rates_follow_from_the_cost_model_and_peers_are_others(tmp_path: Path) -> None:
    store(tmp_path, "2026-01-01-bench-matmul-gpu", {(PRODUCT, "gluon.specialized"): 200.0, (PRODUCT, "quack.matmul"): 100.0})
    found = benches(tmp_path)
    line = tables.compared("matmul")(found).splitlines()[-1]
    rate, apart = f"{2 * 4096**3 / 200e6:.0f} TFLOP/s", "0.50x (0.49 to 0.51)"
    assert line == f"| {PRODUCT} | gluon.specialized | 200 us | {rate} | 90% | quack.matmul | 100 us | {apart} |"


def test_a_fused_end_stands_beside_a_pass_of_its_own(tmp_path: Path) -> None:
    both = {(tables.ALONE, "triton.persistent"): 1000.0, (tables.FUSED, "triton.persistent"): 1100.0}
    store(tmp_path, "2026-01-01-bench-matmul-gpu", both)
    store(tmp_path, "2026-01-01-bench-vector_add-gpu", {("268435456 bf16", "triton.stream"): 6 * 2**28 / 4e6})  # at 4000 GB/s
    apart = 2 * 8192 * 14336 * 2 / 4e6
    assert tables.endings(benches(tmp_path)).splitlines()[-1] == f"| triton.persistent | 1 ms | 1.1 ms | +100 us | {apart:.3g} us |"


def test_what_is_not_stored_says_how_to_store_it(tmp_path: Path) -> None:
    tmp_path.joinpath("2026-01-01-tune-matmul-gpu").mkdir()
    assert "kernelyard bench attention --save" in tables.beside("attention")(benches(tmp_path))


def test_the_picture_has_our_best_kernel_of_each_op(tmp_path: Path) -> None:
    workload = "268435456 bf16"
    store(tmp_path, "2026-01-01-bench-vector_add-gpu", {(workload, "triton.stream"): 400.0, (workload, "torch.eager"): 390.0})
    drawn = page.picture(benches(tmp_path))
    ElementTree.fromstring(drawn)
    assert "vector_add 268435456 bf16, triton.stream" in drawn and "torch.eager" not in drawn


@pytest.mark.parametrize("kernel", ["triton.row", "cuda.row", "gluon.specialized"])
def test_our_backends_are_ours(kernel: str) -> None:
    assert Row("", kernel, 1.0, 1.0, 1.0, None, None).ours and not Row("", "torch.plain", 1.0, 1.0, 1.0, None, None).ours


def test_a_result_is_cut_into_tiles_and_rounds_over_132_multiprocessors() -> None:
    cut = arithmetic.Cut(4097, 4095, 128, 256)
    assert cut.tiles == 33 * 16 and cut.waves == cut.busy * 4 == 4.0
    assert cut.share == cut.useful == pytest.approx(4097 * 4095 / (33 * 128 * 16 * 256))
    assert arithmetic.Cut(127, 4096, 128, 256).busy == 16 / 132


def test_every_row_that_another_kernel_wins_is_listed_with_its_ratio_and_a_reason(tmp_path: Path) -> None:
    wide, odd, even = "2x32x8x4096x4096x128 bf16", "1x4097x4095x4096 bf16", "4096x8192 bf16"
    store(tmp_path, "2026-01-01-bench-attention-gpu", {(wide, "gluon.specialized"): 10.0, (wide, "fa4.attention"): 9.0})
    products = {(odd, "triton.repacked"): 10.0, (odd, "torch.plain"): 50.0, (PRODUCT, "torch.plain"): 1.0}
    store(tmp_path, "2026-01-01-bench-matmul-gpu", products)
    store(tmp_path, "2026-01-01-bench-softmax-gpu", {(even, "triton.row"): 10.0, (even, "liger.softmax"): 9.9})
    lines = [line.strip("| ").split(" | ") for line in tables.losses(benches(tmp_path)).splitlines()[2:]]
    assert [line[:5] for line in lines] == [
        ["softmax", even, "triton.row", "liger.softmax", "0.99x (0.97 to 1.01)"],
        ["matmul", PRODUCT, "not run", "torch.plain", ""],
        ["attention", wide, "gluon.specialized", "fa4.attention", "0.90x (0.88 to 0.92)"],
    ]
    assert lines[0][5].startswith("undecided") and "inner loop" in lines[2][5]


def test_sentences_follow_the_rows(tmp_path: Path) -> None:
    causal, odd = "2x32x32x4096x4096x64 bf16 causal", "1x4097x4095x4096 bf16"
    store(tmp_path, "2026-01-01-bench-attention-gpu", {(causal, "gluon.specialized"): 10.0, (causal, "torch.cudnn"): 20.0})
    store(tmp_path, "2026-01-01-bench-matmul-gpu", {
        (odd, "torch.plain"): 400.0, (odd, "triton.padded"): 200.0, (PRODUCT, "torch.plain"): 100.0,
        (tables.ALONE, "triton.tile"): 100.0, (tables.FUSED, "triton.tile"): 900.0,
        (tables.ALONE, "triton.persistent"): 100.0, (tables.FUSED, "triton.persistent"): 110.0,
    })  # fmt: skip
    store(tmp_path, "2026-01-01-bench-vector_add-gpu", {("268435456 bf16", "triton.stream"): 400.0})
    found = benches(tmp_path)
    told = words.attention(found).splitlines()
    assert told[3].endswith(f"2.00x ({causal}) to 2.00x ({causal}) as fast; 1 faster.") and told[4].endswith("not measured yet.")
    assert "copies move 67 MB; `triton.padded` is fastest" in words.copies(found) and " beside 344 of cuBLAS" in words.copies(found)
    assert "pays in triton.persistent:" in words.endings(found) and "not in triton.tile:" in words.endings(found)
    assert "slower" not in words.count(found) and "another is faster on 0." in words.count(found)


def test_every_part_can_be_made_of_nothing(tmp_path: Path) -> None:
    for name, part in page.PARTS.items():
        assert part(benches(tmp_path)), name
