"""Where a module's time goes: own times that add up, the ops that kernelyard has, and what is in no operation."""

from __future__ import annotations

import pytest
import torch

import kernelyard
from kernelyard.errors import UsageError
from kernelyard.measure.op_shares import OpShare, OpShares


class Block(torch.nn.Module):
    """A product that outweighs the rest, a norm, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = torch.nn.Linear(256, 1024, bias=False), torch.nn.RMSNorm(1024)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.softmax(self.norm(self.up(x)) * scale, -1)


@pytest.fixture(scope="module")
def found() -> OpShares:
    return kernelyard.profile_ops(Block(), torch.randn(512, 256), scale=2.0)


def test_shares_of_own_times_add_up_to_one_and_fall(found: OpShares) -> None:
    shares = [row.share for row in found.rows]
    assert sum(shares) == pytest.approx(1) and shares == sorted(shares, reverse=True)
    assert sum(row.time_us for row in found.rows) == pytest.approx(found.timed_us)
    assert found.clock == "cpu" and found.call_us > 0 and 0 <= found.untimed < 1


def test_calls_are_those_of_one_call_of_the_module(found: OpShares) -> None:
    calls = {row.name: row.calls for row in found.rows}
    assert calls["aten::mm"] == calls["aten::_softmax"] == 1


def test_what_kernelyard_has_an_op_for_is_named_and_the_rest_is_not(found: OpShares) -> None:
    ops = {row.name: row.op for row in found.rows}
    assert ops["aten::_softmax"] == "softmax" and ops["aten::mul"] == ""


def test_an_op_is_served_with_all_that_it_calls(found: OpShares) -> None:
    own = {op: sum(row.share for row in found.rows if row.op == op) for op in found.served}
    assert {"softmax", "rmsnorm"} <= set(found.served)
    assert all(found.served[op] >= 0.99 * own[op] for op in own) and sum(found.served.values()) <= 1.01
    assert found.served["rmsnorm"] > own["rmsnorm"]  # its squares and means are operations of their own


def test_an_operator_of_kernelyards_own_is_itself() -> None:
    assert kernelyard.ops.softmax is not None  # its torch operator is registered with it
    shares = kernelyard.profile_ops(torch.ops.kernelyard.softmax, torch.randn(64, 64))
    assert {row.op for row in shares.rows if row.name.startswith("kernelyard::")} == {"softmax"}


def test_nothing_is_left_behind_on_the_module() -> None:
    block = Block()
    kernelyard.profile_ops(block, torch.randn(8, 256))
    assert all(parameter.grad is None for parameter in block.parameters()) and torch.is_grad_enabled()


def test_running_means_and_random_numbers_are_as_they_were() -> None:
    block = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout())
    before, state = [buffer.clone() for buffer in block.buffers()], torch.get_rng_state()
    kernelyard.profile_ops(block, torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    assert all(map(torch.equal, before, block.buffers())) and torch.equal(state, torch.get_rng_state())


def test_the_table_has_the_dominant_ones_the_rest_and_the_remainder() -> None:
    rows = (OpShare("aten::mm", 2, 90.0, 0.9, ""), OpShare("aten::_softmax", 1, 9.1, 0.091, "softmax"),
            OpShare("aten::t", 1, 0.5, 0.005, ""), OpShare("aten::to", 1, 0.4, 0.004, ""))  # fmt: skip
    text = str(OpShares(rows, {"softmax": 0.095}, "cpu", 110.0, 100.0, 200.0)).splitlines()
    assert text[1].split() == ["90.0%", "90.0", "us", "2", "aten::mm", "-"]
    assert text[2].split()[-1] == "softmax" and "2 smaller ones" in text[3] and "0.9%" in text[3]
    assert text[4].endswith("softmax 9.5%") and "50.0% in no operation" in text[5]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="Tensor"):
        kernelyard.profile_ops(torch.ones(3))  # type: ignore[arg-type]


def test_an_error_of_the_call_goes_on() -> None:
    with pytest.raises(RuntimeError):
        kernelyard.profile_ops(Block(), torch.randn(3, 3))
