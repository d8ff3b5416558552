"""triton.split of rope_attention_decode: right in the interpreter in one part and several, what it compiles to, whose counters it has."""

from __future__ import annotations

import re
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelyard.contracts import ROPE_ATTENTION_DECODE
from kernelyard.plugins.triton_jit.counters import APART, Slab, with_counters
from kernelyard.plugins.triton_jit.rope_attention_decode_space import KERNELS, SPACE, columns_at_once
from kernelyard.registry.backend import TritonLaunch
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import DeclarationError, TensorSpec, Workload
from tests.plugins.interpreting import interpreted_by

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
(KERNEL,) = KERNELS
SHARED = 227 * 1024


def work(*dims: int, dtype: str = "bfloat16") -> Workload:
    return ROPE_ATTENTION_DECODE.workload(Point(dims, dtype), "cuda")


def compiled(workload: Workload, **chosen: Any) -> Any:
    from kernelyard.plugins.triton_jit.offline import compile_only

    config = {**SPACE.default_for(workload), **chosen}
    assert SPACE.allows(config, workload)
    return compile_only(ROPE_ATTENTION_DECODE, KERNEL, workload, config)


@needs_triton
@pytest.mark.timeout(300)
def test_one_part_and_several_keep_the_contract_and_leave_counters_as_zeros() -> None:
    told = interpreted_by("fused_decode_agreement.py")
    assert told["faults"] == {} and told["compared"] >= 10
    assert told["counted"] >= 6 and told["left"] == 0


def test_the_author_s_config_and_hints_are_in_the_space_of_every_point(agreement: ModuleType) -> None:
    assert agreement.outside_of_space(KERNEL) == []
    hints = SPACE.hints_for(work(1, 32, 8, 4096, 128))
    assert len(hints) > 2 and all(SPACE.allows(hint, work(1, 32, 8, 4096, 128)) for hint in hints)


@pytest.mark.parametrize(
    ("dims", "parts"), [((1, 32, 8, 128, 64), 4), ((1, 32, 8, 16384, 128), 32), ((8, 32, 8, 4096, 64), 16), ((64, 32, 8, 4096, 128), 2)]
)
def test_parts_make_two_programs_a_multiprocessor_and_none_is_without_tokens(dims: tuple[int, ...], parts: int) -> None:
    assert SPACE.default_for(work(*dims))["parts"] == parts


@pytest.mark.parametrize(("parts", "columns"), [(2, 128), (32, 32), (64, 16)])
def test_the_merge_holds_as_many_columns_of_all_parts_as_registers_do(parts: int, columns: int) -> None:
    assert columns_at_once({"parts": parts, "num_warps": 4}, work(1, 32, 8, 16384, 128)) == columns


def test_more_parts_than_a_merge_can_hold_are_refused() -> None:
    shape = work(1, 28, 1, 16384, 128)
    answer = SPACE.allows({**SPACE.default_for(shape), "parts": 64, "num_warps": 2}, shape)
    assert not answer and "merging program's registers" in answer.reason


@needs_triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ROPE_ATTENTION_DECODE.matrices["performance/cuda"][::3], ids=lambda point: "x".join(map(str, point.dims)))
def test_the_author_s_config_compiles_for_hopper_without_spills(point: Point) -> None:
    told = compiled(ROPE_ATTENTION_DECODE.workload(point, "cuda"))
    assert told.local_bytes == 0 and told.shared_bytes <= SHARED // 2
    assert "cp.async.cg.shared.global" in told.ptx and "mma.sync" in told.ptx


@needs_triton
@pytest.mark.timeout(300)
def test_who_comes_last_is_told_by_a_count_that_releases_and_acquires_behind_a_barrier() -> None:
    ptx = compiled(work(1, 32, 8, 4096, 128)).ptx
    (count,) = re.finditer(r"atom\S*\.acq_rel\S*\.add\S*", ptx)
    before, after = ptx[: count.start()], ptx[count.end() :]
    assert before.rindex("bar.sync") > before.rindex("st.global"), "all have stored before one counts"
    assert "ld.global.cg" in after and "ld.global.cg" not in before, "parts are read past L1"


@needs_triton
@pytest.mark.timeout(300)
def test_one_part_counts_nobody() -> None:
    assert "atom" not in compiled(work(64, 32, 32, 128, 128), parts=1).ptx


# Counters -----------------------------------------------------------------------------------------------


def slab(count: int = 256) -> Slab:
    return Slab(torch.zeros(count, dtype=torch.int32))


def test_a_stream_keeps_its_counters_and_two_streams_share_none() -> None:
    one = slab()
    first, again, other = one.of_stream(1, 8), one.of_stream(1, 4), one.of_stream(2, 8)
    assert first.data_ptr() == again.data_ptr() and other.data_ptr() - first.data_ptr() == APART * 4


def test_a_captured_call_s_counters_are_never_handed_out_again() -> None:
    one = slab()
    places = [one.captured(8).data_ptr() for _ in range(4)] + [one.of_stream(1, 8).data_ptr()]
    assert len(set(places)) == 5


def test_a_stream_that_needs_more_counters_takes_others() -> None:
    one = slab()
    few, many = one.of_stream(1, 8), one.of_stream(1, 64)
    assert many.numel() >= 64 and many.data_ptr() != few.data_ptr()


def test_when_all_are_handed_out_a_call_zeroes_its_own() -> None:
    one = slab(64)
    one.captured(64)
    for own in (one.captured(8), one.of_stream(1, 8)):
        assert own.numel() == 8 and not own.any() and not 0 <= own.data_ptr() - one.memory.data_ptr() < 64 * 4


def test_counters_stand_behind_outputs_and_workspaces() -> None:
    seen: list[tuple[Any, ...]] = []
    with_counters(3, lambda outputs, *args: seen.append((outputs, args)))((torch.ones(2), torch.ones(4)), "x")
    ((_, _, zeros), args) = seen[0]
    assert zeros.dtype == torch.int32 and zeros.tolist() == [0, 0, 0] and args == ("x",)
    launch = TritonLaunch(None, (1, 1, 1), tuple, workspace=(TensorSpec((4,), "float32"),), counters=3)
    assert launch.scratch == (TensorSpec((4,), "float32"), TensorSpec((3,), "int32"))


def test_only_the_first_launch_may_have_counters() -> None:
    later = TritonLaunch(None, (1, 1, 1), tuple, counters=1)
    with pytest.raises(DeclarationError, match="belongs to the first launch"):
        TritonLaunch(None, (1, 1, 1), tuple, then=later)


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_keeps_the_contract_on_a_gpu(agreement: ModuleType) -> None:
    told = agreement.faults(KERNEL, "smoke", "cuda")
    assert told["faults"] == {} and told["cases"]


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_two_graphs_replayed_side_by_side_and_again_give_what_plain_torch_gives(agreement: ModuleType) -> None:
    import kernelyard
    from kernelyard import ops

    sets = [ROPE_ATTENTION_DECODE.inputs(work(8, 32, 8, 4096, 64), torch.Generator("cuda").manual_seed(seed)) for seed in (0, 1)]
    graphs, outs = [], []
    with kernelyard.use(rope_attention_decode="triton.split"):
        for args in sets:
            ops.rope_attention_decode(*args)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outs.append(ops.rope_attention_decode(*args))
            graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    with kernelyard.use(rope_attention_decode="torch.eager"):
        for args, out in zip(sets, outs, strict=True):
            torch.testing.assert_close(out, ops.rope_attention_decode(*args), rtol=2e-2, atol=2e-2)
