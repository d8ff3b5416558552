"""Results in many chunks: nothing depends on where one ends, and what is past a chunk, a window or 2^31 elements is found and told."""

from __future__ import annotations

import pytest
import torch

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry import registry
from kernelyard.registry.op import Op, Point
from kernelyard.registry.spec import Tolerance
from kernelyard.verify import compare, diagnosis, guards, room
from kernelyard.verify.oracle import check_workload
from tests.wrong_kernels.addresses import ADDRESSES
from tests.wrong_kernels.arithmetic import ARITHMETIC

TOLERANCE = Tolerance(1e-3, 1e-6, "for the test")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 7 elements, windows of 512, offsets of 16 bits for those of 32."""
    monkeypatch.setattr(compare, "CPU_CHUNK", 7)
    monkeypatch.setattr(compare, "CUDA_CHUNK", 28)
    monkeypatch.setattr(diagnosis, "MOST_ELEMENTS", 512)
    monkeypatch.setattr(diagnosis, "SIGNED_32", 1 << 15)


@pytest.fixture
def middling(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with chunks of 401 elements: a case has many, and is still quick."""
    monkeypatch.setattr(compare, "CPU_CHUNK", 401)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("at", [0, 6, 7, 13, 902])
def test_an_element_is_found_in_whichever_chunk_it_lies(at: int) -> None:
    want = torch.ones(7, 129, dtype=torch.float64)
    got = want.float()
    got.view(-1)[at] = 2.0
    bad = compare.wrong(got, want, TOLERANCE)
    assert bad is not None and bad.view(-1).nonzero().tolist() == [[at]] and compare.first(bad) == at
    assert compare.first_difference(got, want.float()) == at and compare.differing(got, want.float()) == 1
    assert compare.errors(got, want).absolute == 1.0 and compare.errors(got, want).norm == pytest.approx(903**-0.5)


def test_errors_do_not_depend_on_the_size_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    want = torch.randn(33, 129, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = want.bfloat16()
    whole, many = compare.errors(got, want), compare.effective(want)
    monkeypatch.setattr(compare, "CPU_CHUNK", 100)
    again = compare.errors(got, want)
    assert (again.absolute, again.relative, again.ulp) == (whole.absolute, whole.relative, whole.ulp)
    assert again.norm == pytest.approx(whole.norm) and compare.effective(want) == pytest.approx(many)


def test_effective_elements_are_those_that_weigh() -> None:
    assert compare.effective(torch.ones(100)) == pytest.approx(100)
    assert compare.effective(torch.tensor([1.0, *[1e-6] * 99])) == pytest.approx(1)
    assert compare.effective(torch.zeros(4)) == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("at", [129, 199, 200 + 150, 200 * 5 + 199])
def test_a_byte_in_the_gaps_is_found_in_whichever_chunk_it_lies(at: int) -> None:
    region = guards.output(torch.empty(7, 200)[:, :129])
    region.span()[at] = 1.0
    assert guards.astray(region) == "1 element in the gaps between its rows"


@pytest.mark.usefixtures("middling")
def test_offsets_that_wrap_are_told_by_where_the_errors_begin() -> None:
    entry = next(entry for entry in ARITHMETIC if entry.name == "offset_wraps")
    failed = next(f for f in entry.check().failures if f.case == "65537 fp32 random")
    assert "first at element 32768: " in failed.reason
    assert failed.reason.endswith("the first that a signed offset of 32 bits can't reach. Offsets of 32 bits?")


@pytest.mark.usefixtures("middling")
@pytest.mark.parametrize("name", ["missing_rows", "store_past_the_end", "reads_its_own_output", "input_changed"])
def test_wrong_kernels_are_caught_and_named_in_small_chunks_and_windows_too(name: str) -> None:
    entry = next(entry for entry in ADDRESSES if entry.name == name)
    says = "elements were left unwritten" if name == "missing_rows" else entry.says
    assert any(says in failure.reason for failure in entry.check().failures)


def test_window_takes_whole_rows_from_the_first_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MOST_ELEMENTS", 40)
    bad = torch.zeros(20, 10, dtype=torch.bool)
    bad[3, 7] = True
    part = diagnosis.window(bad)
    assert part(torch.arange(200).view(20, 10))[:, 0].tolist() == [30, 40, 50, 60]
    flat = torch.zeros(200, dtype=torch.bool)
    flat[150] = True
    assert diagnosis.window(flat)(torch.arange(200)).tolist() == list(range(150, 190))


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "dims", "dtype"), [
    (SOFTMAX, (262145, 8192), "bfloat16"), (RMSNORM, (262145, 8192), "bfloat16"), (VECTOR_ADD, (2**31 + 4096,), "float16"),
], ids=["softmax", "rmsnorm", "vector_add"])  # fmt: skip
def test_results_past_2_31_elements_are_right_to_the_last_row_and_fit_the_estimate(op: Op, dims: tuple[int, ...], dtype: str) -> None:
    device, table = torch.device("cuda"), registry.current()
    workload = op.workload(Point(dims, dtype), "cuda")
    if not (answer := room.enough(op, workload, device)):
        pytest.skip(answer.reason)
    kernel = next(k for k in table.kernels(op.name) if k.backend == "triton" and k.support.fits(workload))
    built = table.build(kernel, workload, kernel.space.default_for(workload))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    result = check_workload(op, kernel, built, workload, device=device)
    assert result.ok, result.reason
    assert torch.cuda.max_memory_allocated() <= room.needed_bytes(op, workload)

    args = op.inputs(workload, torch.Generator(device).manual_seed(3))
    last = [a[-8:] if isinstance(a, torch.Tensor) and a.shape == args[0].shape else a for a in args]
    want = op.reference(*(a.float() if isinstance(a, torch.Tensor) else a for a in last))
    assert compare.wrong(built.call(*args)[-8:], want, op.tolerance(workload)) is None
