"""A check knows where it is: each failure can be run again, also the one that took its process along."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.registry import registry
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Matrix, Point
from kernelyard.registry.spec import Status
from kernelyard.verify import edges
from kernelyard.verify.check import check_kernel
from kernelyard.verify.isolation import Worker
from kernelyard.verify.jobs import Checked, check_located
from kernelyard.verify.journal import Where, Writer, journal
from tests.wrong_kernels import catalogue

MATRIX = Matrix("test", "rmsnorm", (Point((7, 129), "float32"), Point((7, 129), "float32", "offset"), Point((16, 512), "float32")))


pytestmark = pytest.mark.usefixtures("planted")


def planted_kernel(name: str) -> Kernel:
    kernel = registry.current().kernel("rmsnorm", f"planted.{name}")
    return replace(kernel, support=replace(kernel.support, predicates=()))


def test_each_failure_has_its_point_edge_and_config() -> None:
    writer = Writer(RMSNORM, {RMSNORM.workload(point): point for point in MATRIX.points}, None)
    build = writer.building(lambda kernel, workload, config: Executable(lambda *args: catalogue.rmsnorm(*args) * 2))
    report = check_kernel(RMSNORM, planted_kernel("too_narrow"), MATRIX, "cpu", build=build, progress=writer.progress)
    assert len(writer.failures) == len(report.failures) > 10
    for failure, where in zip(report.failures, writer.failures, strict=True):
        assert failure.case.rsplit(" ", 1)[-1] == where.edge
        assert failure.case.startswith(RMSNORM.workload(where.point).label())
    assert {where.edge for where in writer.failures} <= {"random", *edges.ALWAYS, *RMSNORM.edges}


def check(name: str, timeout_s: float = 100) -> Checked:
    kernel = registry.current().kernel("rmsnorm", f"planted.{name}")
    with Worker() as worker:
        return check_located(worker, RMSNORM, kernel, MATRIX, "cpu", timeout_s=timeout_s)


def test_a_crash_is_a_failure_of_the_case_that_was_begun_last() -> None:
    checked = check("segfault")
    (failure,) = checked.report.failures
    assert failure.status is Status.CRASHED and failure.case == "7x129 fp32 random"
    assert checked.where == (Where(MATRIX.points[0], "random", {}),)


def test_an_entry_that_names_nothing_is_said_in_a_sentence() -> None:
    reasons = {failure.reason for failure in check("no_such_function").report.failures}
    entry = "tests.wrong_kernels.planted:no_such_function"
    words = f"planted.no_such_function has no code: its entry '{entry}' names nothing: module 'tests.wrong_kernels.planted' has no"
    assert len(reasons) == 1 and reasons.pop() == f"{words} 'no_such_function'."


def test_the_parent_sees_how_far_the_child_is() -> None:
    seen: list[tuple[int, int]] = []
    with journal(None) as reader:
        writer = Writer(RMSNORM, {RMSNORM.workload(point): point for point in MATRIX.points}, reader.path)
        assert reader.done() is None and reader.last() is None
        build = writer.building(lambda kernel, workload, config: Executable(catalogue.rmsnorm))
        report = check_kernel(
            RMSNORM, planted_kernel("too_narrow"), MATRIX, "cpu", build=build,
            progress=lambda *told: (writer.progress(*told), seen.append(told[:2])),
        )  # fmt: skip
        assert reader.done() == seen[-1] and seen[-1][0] == seen[-1][1]
        last = reader.last()
    assert report.ok and last is not None and last.edge == "memory"
    assert not reader.path.exists()
