"""benchmarks/decode_beside_cudnn.py: which caches are comparable, and what the table says."""

from __future__ import annotations

from benchmarks import decode_beside_cudnn as script
from kernelyard.contracts.attention import ATTENTION
from kernelyard.contracts.attention_decode import ATTENTION_DECODE


def test_a_comparable_cache_is_contiguous_and_full_and_asks_attention_for_as_much() -> None:
    workloads = script.full_caches(ATTENTION_DECODE)
    assert workloads and not any(workload.has("block_table") for workload in workloads)
    for workload in workloads:
        assert ATTENTION_DECODE.cost(workload) == ATTENTION.cost(script.as_attention(ATTENTION, workload))


def test_the_table_sets_each_time_beside_cudnn_and_keeps_the_reasons_of_those_without() -> None:
    names = {"workload": "1x32", "op": "attention", "config": {}, "reason": ""}
    timed = [
        names | {"kernel": name, "device_time_us": us, "low_us": us, "high_us": us} for name, us in (("ours", 4.0), ("torch.cudnn", 6.0))
    ]
    *_, ours, cudnn, wrong = script.table([*timed, names | {"kernel": "bad", "device_time_us": None, "reason": "wrong"}]).splitlines()
    assert "1.50x" in ours and "1.00x" in cudnn and "wrong" in wrong
