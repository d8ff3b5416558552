"""A check that passed on the op's frozen matrix is kept as a proof of determinism; anything less is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kernelyard
from kernelyard.cli.proofs import record
from kernelyard.errors import Unsupported
from kernelyard.registry import dispatch, proofs, registry
from kernelyard.registry.op import Matrix, Point
from kernelyard.registry.spec import Determinism
from kernelyard.verify.outcome import CaseResult, CheckReport, Status

PASSED = CheckReport("vector_add", "torch.eager", "cpu", 84, (), 0)
FAILED = replace(PASSED, failures=(CaseResult("7 fp32 random", Status.WRONG, "off"),))


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """A store of the test's own."""
    dispatch.forget()


def frozen() -> Matrix:
    return proofs.frozen(registry.current().op("vector_add"), "cpu")


def test_a_kernel_that_passed_serves_those_who_ask_for_determinism() -> None:
    op = registry.current().op("vector_add")
    with kernelyard.use(deterministic=True):
        with pytest.raises(Unsupported, match="torch.eager: determinism was asked for; it declares run-to-run but has not shown it here"):
            dispatch.select(op, op.workload(Point((9,), "float32")))
        assert record(PASSED, frozen(), registry.current())
        assert dispatch.select(op, op.workload(Point((9,), "float32"))).kernel.name == "torch.eager"


@pytest.mark.parametrize(
    "report",
    [FAILED, replace(PASSED, cases=0, reason="no compiler"), replace(PASSED, no_room=1, refusals={"needs 9 GB": 1})],
    ids=["failed", "not checked", "short of memory"],
)
def test_a_report_that_is_not_whole_proves_nothing(report: CheckReport) -> None:
    assert not record(report, frozen(), registry.current())
    assert proofs.find("vector_add", "torch.eager", "cpu") is None


def test_another_matrix_proves_nothing() -> None:
    assert not record(PASSED, registry.current().op("vector_add").matrix("smoke", "cpu"), registry.current())


def test_a_kernel_that_declares_none_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = registry.current()
    undeclared = replace(table.kernel("vector_add", "torch.eager"), determinism=Determinism.NONE)
    monkeypatch.setitem(table.by_op["vector_add"], "torch.eager", undeclared)
    assert not record(PASSED, frozen(), table)


def test_a_check_by_emulation_proves_nothing_about_a_device_that_the_kernel_does_not_serve() -> None:
    assert not record(replace(PASSED, kernel="triton.stream"), frozen(), registry.current())


def test_a_store_that_can_not_be_written_takes_no_verdict_away(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("a file where the folder should be")
    assert not record(PASSED, frozen(), registry.current())
    assert "torch.eager: that it is deterministic could not be kept" in capsys.readouterr().err
