"""rope_attention_decode: what it means and writes, sequences without room, what tells a wrong one, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kernelyard
from kernelyard import ops
from kernelyard.contracts import ATTENTION_DECODE, ROPE, ROPE_ATTENTION_DECODE
from kernelyard.contracts.rope_attention_decode import heads_of
from kernelyard.contracts.rope_attention_decode_inputs import lengths
from kernelyard.errors import InvalidInput
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.matrix import Point
from kernelyard.registry.spec import Status
from kernelyard.verify.oracle import check_workload
from tests.contracts.cases import inputs, wide

Args = tuple[Any, ...]
DIMS = (6, 4, 2, 40, 16)


def given(dims: tuple[int, ...] = DIMS, dtype: str = "float32", seed: int = 0) -> Args:
    return inputs(ROPE_ATTENTION_DECODE, ROPE_ATTENTION_DECODE.workload(Point(dims, dtype)), seed)


def copied(args: Args) -> Args:
    return tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)


def in_steps(qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, cos: Tensor, sin: Tensor, scale: float | None) -> Tensor:
    """By the references of rope and attention_decode, for sequences with room alone."""
    q, k, v = heads_of(qkv, k_cache)
    q, k = (ROPE.reference(one, cos, sin, lengths, "half", False) for one in (q, k))
    for b, n in enumerate(lengths.tolist()):
        k_cache[b, :, n], v_cache[b, :, n] = k[b], v[b]
    return ATTENTION_DECODE.reference(q.unsqueeze(2), k_cache, v_cache, lengths + 1, None, scale).flatten(1)


def test_it_is_rope_a_write_and_attention_over_the_cache_in_float64() -> None:
    qkv, k, v, _, *rest = wide(given())
    some = torch.tensor([39, 0, 7, 13, 38, 1], dtype=torch.int32)
    k, v = k.nan_to_num(0.5), v.nan_to_num(0.5)
    ours, theirs = (qkv, k.clone(), v.clone(), some, *rest), (qkv, k.clone(), v.clone(), some, *rest)
    torch.testing.assert_close(ROPE_ATTENTION_DECODE.reference(*ours), in_steps(*theirs))
    torch.testing.assert_close(ours[1:3], theirs[1:3])


@pytest.mark.parametrize("name", ["torch.eager", "torch.composed"])
def test_a_sequence_without_room_is_nan_and_its_cache_stays_and_others_are_served(name: str) -> None:
    args = given()
    before, room = copied(args), [0 <= n < 40 for n in args[3].tolist()]
    assert room == [True, False, True, True, False, True]
    with kernelyard.use(rope_attention_decode=name):
        out = ops.rope_attention_decode(*args)
    assert [not row.isnan().any() for row in out] == room
    for b, has in enumerate(room):
        for after, was in zip(args[1:3], before[1:3], strict=True):
            same = torch.allclose(after[b], was[b], rtol=0, atol=0, equal_nan=True)
            assert same is not has


def test_what_a_cache_holds_past_a_length_has_no_influence_and_is_typically_nan() -> None:
    args = given()
    other = copied(args)
    assert args[1].isnan().any() and args[2].isnan().any()
    for cache in other[1:3]:
        cache.nan_to_num_(1e4)
    one, two = ROPE_ATTENTION_DECODE.results(args)[0], ROPE_ATTENTION_DECODE.results(other)[0]
    torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def test_a_repeated_call_writes_the_same_again() -> None:
    args = given()
    with kernelyard.use(rope_attention_decode="torch.eager"):
        once = ops.rope_attention_decode(*args)
        caches = copied(args[1:3])
        again = ops.rope_attention_decode(*args)
    torch.testing.assert_close((once, *caches), (again, *args[1:3]), rtol=0, atol=0, equal_nan=True)


def test_a_whole_graph_writes_the_caches_too() -> None:
    compiled = torch.compile(lambda *args: ops.rope_attention_decode(*args) * 2, fullgraph=True, backend="aot_eager")
    args = given()
    other = copied(args)
    with kernelyard.use(rope_attention_decode="torch.eager"):
        expected, got = 2 * ops.rope_attention_decode(*args), compiled(*other)
    torch.testing.assert_close((got, *other[1:3]), (expected, *args[1:3]), rtol=0, atol=0, equal_nan=True)


def test_a_gradient_is_refused() -> None:
    qkv, *rest = given()
    with pytest.raises(InvalidInput, match="writes into k_cache, v_cache and has no gradient"):
        ops.rope_attention_decode(qkv.requires_grad_(), *rest)


def test_where_speed_counts_every_cache_is_full_by_the_new_token() -> None:
    for point in ROPE_ATTENTION_DECODE.matrices["performance/cuda"]:
        batch, *_, capacity, _ = point.dims
        if capacity % 1024 == 0:
            assert lengths(ROPE_ATTENTION_DECODE.workload(point), 0) == (capacity - 1,) * batch


def test_the_cost_counts_what_the_timed_lengths_read_and_write() -> None:
    work = ROPE_ATTENTION_DECODE.workload(Point((2, 8, 2, 1024, 64), "bfloat16"))
    token = 2 * 2 * 64 * 2  # key and value of two heads
    assert ROPE_ATTENTION_DECODE.cost(work).bytes == 2 * (12 * 64 * 2 + 1024 * token + 64 * 4 + 8 * 64 * 2)


# What tells a wrong one ---------------------------------------------------------------------------------


def verdict(call: Callable[..., Tensor]) -> tuple[Status, str]:
    kernel = Kernel("torch.test", "rope_attention_decode", "torch", "for a test", "none:none", Support(("cpu",), ("float32",)))
    work = ROPE_ATTENTION_DECODE.workload(Point(DIMS, "float32"))
    found = check_workload(ROPE_ATTENTION_DECODE, kernel, Executable(call), work, device=torch.device("cpu"))
    return found.status, found.reason


def right(*args: Any) -> Tensor:
    out: Tensor = ROPE_ATTENTION_DECODE.reference(*args)
    return out


def unrotated_key(qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    out = right(qkv, k_cache, v_cache, lengths, *rest)
    k_cache[0, :, int(lengths[0])] = heads_of(qkv, k_cache)[1][0]
    return out


def a_slot_too_far(qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    kept = k_cache[2, :, 1].clone()
    out = right(qkv, k_cache, v_cache, lengths, *rest)
    k_cache[2, :, 1] = k_cache[2, :, 0]
    return out + 0 * kept.nan_to_num().sum()


def past_the_end(qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    """The sequence without room writes where the next head begins."""
    out = right(qkv, k_cache, v_cache, lengths, *rest)
    k_cache[1, 1, 0] = 1.0
    return out


def not_its_own_token(qkv: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    out = right(qkv, k_cache, v_cache, lengths, *rest)
    shorter = torch.where(lengths > 0, lengths - 1, lengths)
    out[0] = right(qkv, k_cache.clone(), v_cache.clone(), shorter, *rest)[0]
    return out


def zeros_without_room(*args: Any) -> Tensor:
    return right(*args).nan_to_num(0.0)


def test_a_right_one_is_right() -> None:
    assert verdict(right) == (Status.OK, "")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (unrotated_key, "k_cache afterwards"), (a_slot_too_far, "k_cache"), (past_the_end, "input k_cache was changed"),
        (not_its_own_token, "output 0"), (zeros_without_room, "output 0: 128 of 384 elements differ"),
    ],
)  # fmt: skip
def test_a_wrong_one_is_found(call: Callable[..., Tensor], told: str) -> None:
    status, reason = verdict(call)
    assert status is Status.WRONG and told in reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_rounds_query_key_and_weights_is_within_the_tolerance_and_eight_bits_are_not(dtype: str) -> None:
    work = ROPE_ATTENTION_DECODE.workload(Point((3, 8, 2, 1000, 64), dtype))
    for seed in (0, 1):
        args = inputs(ROPE_ATTENTION_DECODE, work, seed)
        want, tolerance = ROPE_ATTENTION_DECODE.results(wide(args))[0], ROPE_ATTENTION_DECODE.tolerance(work)
        for kind, fits in ((getattr(torch, dtype), True), (torch.float8_e5m2, False)):
            off = (rounded(args, kind).double() - want).abs() - tolerance.absolute - tolerance.relative * want.abs()
            assert bool((off.nan_to_num(-1.0) <= 0).all()) is fits


def rounded(args: Args, kind: torch.dtype) -> Tensor:
    """The op with query, key and weights rounded to `kind`, one sequence after the other."""
    qkv, k_cache, v_cache, lengths, cos, sin, scale = copied(args)
    out = torch.full((qkv.shape[0], 8 * 64), torch.nan)
    for b, n in enumerate(lengths.tolist()):
        if not 0 <= n < k_cache.shape[2]:
            continue
        q, k, v = (one.float() for one in heads_of(qkv[b : b + 1], k_cache))
        q, k = (ROPE.reference(one, cos, sin, lengths[b : b + 1], "half", False).to(kind).float() for one in (q, k))
        keys = torch.cat((k_cache[b, :, :n].float(), k[0][:, None]), 1).repeat_interleave(4, 0)
        values = torch.cat((v_cache[b, :, :n].float(), v[0][:, None]), 1).repeat_interleave(4, 0)
        scores = (q[0][:, None] @ keys.mT) * scale
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        out[b] = ((weights.to(kind).float() @ values) / weights.sum(-1, keepdim=True)).flatten()
    return out.to(qkv.dtype)


QKV, CACHE, SOME, TABLE = torch.ones(2, 4 * 8), torch.zeros(2, 1, 6, 8), torch.zeros(2, dtype=torch.int32), torch.ones(6, 4)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"qkv": torch.ones(2, 33)}, r"qkv has shape \(2, 33\)"),
        ({"qkv": torch.ones(2, 16)}, "Give qkv as"),
        ({"qkv": torch.ones(3, 32)}, r"the cache \(2, 1, 6, 8\)"),
        ({"k_cache": torch.zeros(2, 1, 6, 7)}, "head_dim even"),
        ({"v_cache": torch.zeros(2, 1, 5, 8)}, r"k has shape \(2, 1, 6, 8\), v \(2, 1, 5, 8\)"),
        ({"v_cache": torch.zeros(2, 1, 6, 8).half()}, "v is torch.float16"),
        ({"k_cache": torch.zeros(1, 1, 6, 8).expand(2, 1, 6, 8)}, "k_cache is expanded"),
        ({"lengths": SOME.long()}, "lengths is torch.int64"),
        ({"cos": torch.ones(5, 4)}, r"cos has shape \(5, 4\), the cache 6 positions"),
        ({"sin": torch.ones(7, 4)}, "Give both in one shape"),
        ({"cos": TABLE.half()}, "cos is torch.float16, qkv is torch.float32"),
    ],
)
def test_what_the_contract_leaves_undefined_is_refused(changed: dict[str, Tensor], told: str) -> None:
    usual = {"qkv": QKV, "k_cache": CACHE, "v_cache": CACHE.clone(), "lengths": SOME, "cos": TABLE, "sin": TABLE, "scale": None}
    ROPE_ATTENTION_DECODE.check(tuple(usual.values()))
    with pytest.raises(InvalidInput, match=told):
        ROPE_ATTENTION_DECODE.check(tuple({**usual, **changed}.values()))
