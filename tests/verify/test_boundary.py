"""Declared support against the real one: too wide with the size where it goes wrong, too narrow with the points that were right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.verify.boundary import Row, boundary
from kernelyard.verify.envelope import Axis, axes, base_point
from kernelyard.verify.isolation import Worker
from tests.devices import on_each_device

pytestmark = pytest.mark.usefixtures("planted")


def kernel(name: str) -> tuple[Op, Kernel]:
    table = registry.current()
    return table.op("rmsnorm"), table.kernel("rmsnorm", f"planted.{name}")


def rows(name: str, device: str, worker: Worker) -> dict[str, Row]:
    return {row.axis: row for row in boundary(*kernel(name), device, worker)}


@on_each_device
def test_too_wide_a_bound_is_found_with_the_size_from_which_it_is_wrong(device: str, worker: Worker) -> None:
    found = rows("too_wide", device, worker)
    assert (found["cols"].declared, found["cols"].verdict) == ("0..4096", "too wide")
    assert found["cols"].real == "right to 1000, wrong from 1001"
    assert "elements differ" in found["cols"].example
    assert found["rows"].verdict == "exact"


@on_each_device
def test_too_narrow_declarations_are_found_with_the_number_of_points(device: str, worker: Worker) -> None:
    found = rows("too_narrow", device, worker)
    assert found["cols"].verdict == "too narrow" and found["cols"].real == "right at 513, 514, 1024, 1025 too"
    assert found["cols"].example.startswith("4 outside, ")
    assert found["dtype"].verdict == "too narrow" and "float16" in found["dtype"].real
    assert found["layout"].verdict == "exact"
    assert found["plain_meaning"].verdict == "exact", "it ignores an offset, which the predicate refuses"
    assert "fp32 casting, no offset" in found["plain_meaning"].declared and "wrong" in found["plain_meaning"].example


@on_each_device
def test_a_kernel_wrong_in_the_middle_of_its_support_gets_one_row(device: str, worker: Worker) -> None:
    (row,) = boundary(*kernel("mask_off_by_one"), device, worker)
    assert (row.axis, row.verdict) == ("all", "too wide") and "`check` has more" in row.real


def test_a_kernel_that_can_not_run_here_is_not_tried_and_says_why(worker: Worker) -> None:
    table = registry.current()
    (row,) = boundary(table.op("rmsnorm"), table.kernel("rmsnorm", "cpp.onepass"), "cuda", worker)
    assert row.verdict.startswith("not tried: ") and row.points == 0


def test_out_of_time_the_rest_is_not_tried(worker: Worker) -> None:
    found = boundary(*kernel("too_narrow"), "cpu", worker, budget_s=0.0)
    assert {row.verdict for row in found} == {"not tried: the time for this kernel was up"}


# Where to look --------------------------------------------------------------------------------------


def declared(**support: object) -> dict[str, Axis]:
    op, one = kernel("too_narrow")
    other = replace(one, support=replace(one.support, predicates=(), **support))  # type: ignore[arg-type]
    base = base_point(op, other, "cpu")
    assert base is not None
    return {axis.name: axis for axis in axes(op, other, "cpu", base)}


def test_points_stand_just_inside_and_just_outside_of_each_bound() -> None:
    cols = declared(most={"cols": 512}, least={"cols": 16})["cols"]
    assert {"16", "17", "511", "512"} <= {probe.value for probe in cols.inside}
    assert [probe.value for probe in cols.outside] == ["0", "8", "15", "513", "514", "1024", "1025"]


def test_a_bound_that_is_too_large_to_pass_is_said() -> None:
    rows = declared(most={"rows": 2**31 - 32})["rows"]
    assert rows.outside == () and "too large to try" in rows.beyond


def test_wide_rows_are_tried_with_few_of_them() -> None:
    cols = declared(most={"cols": 1 << 21})["cols"]
    assert Point((2, 1 << 21), "float32") in {probe.point for probe in cols.inside}


def test_a_point_outside_breaks_one_rule_alone() -> None:
    found = declared(contiguous=True, most={"cols": 512})
    assert {probe.value for probe in found["layout"].outside} == {"row_strided", "transposed", "broadcast"}
    assert all(probe.point.layout == "contiguous" for probe in found["cols"].outside)
    assert {probe.value for probe in found["dtype"].outside} == {"float16"}


def test_the_layouts_of_an_op_s_own_are_tried() -> None:
    op, (_, one) = registry.current().op("attention"), kernel("too_narrow")
    other = replace(one, op="attention", support=replace(one.support, predicates=(), most={}, least={}, contiguous=True))
    base = base_point(op, other, "cpu")
    assert base is not None
    layouts = next(axis for axis in axes(op, other, "cpu", base) if axis.name == "layout")
    assert "bshd" in {probe.value for probe in layouts.outside}
