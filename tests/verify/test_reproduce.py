"""Scripts say in plain Python what the inputs were; a crash and a hang are answers of a script too."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from kernelyard.registry import registry
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Status
from kernelyard.verify.journal import Where
from kernelyard.verify.reproduce import fault
from kernelyard.verify.script import arguments, asks, compares, expression
from kernelyard.verify.tries import Subject
from tests.devices import on_each_device

pytestmark = pytest.mark.usefixtures("planted")


@pytest.fixture(autouse=True)
def default_device() -> Iterator[None]:
    """Scripts for a GPU make it the default."""
    yield
    torch.set_default_device(None)


def subject(point: Point, device: str, edge: str = "random", **more: object) -> Subject:
    table = registry.current()
    kernel = table.kernel("rmsnorm", "planted.too_narrow")
    return Subject(table.op("rmsnorm"), kernel, device, Where(point, edge, {}), Status.WRONG, **more)  # type: ignore[arg-type]


@on_each_device
@pytest.mark.parametrize("layout", ["contiguous", "row_strided", "transposed", "broadcast", "offset"])
@pytest.mark.parametrize("edge", ["random", "nan"])
def test_a_tensor_written_down_has_the_same_bits_strides_and_misalignment(layout: str, edge: str, device: str) -> None:
    x = arguments(subject(Point((3, 5), "bfloat16", layout), device, edge))[0]
    with torch.device(device):
        made = eval(expression(x, "own"), {"torch": torch})
    assert torch.equal(made.nan_to_num(7.0), x.nan_to_num(7.0)) and torch.equal(made.isnan(), x.isnan())
    assert made.device == x.device and made.dtype == x.dtype and made.stride() == x.stride() and made.data_ptr() % 16 == x.data_ptr() % 16


@on_each_device
@pytest.mark.parametrize("values", [{}, {"x": "arange", "w": "ones"}])
@pytest.mark.parametrize("dims", [(2, 3), (300, 400)])
def test_the_arguments_of_a_script_are_those_of_the_case(dims: tuple[int, int], values: dict[str, str], device: str) -> None:
    failing = subject(Point(dims, "float32"), device, values=values)
    for write in (compares, asks):
        lines = write(failing, "a reason", failing.kernel, {}).splitlines()
        names: dict[str, object] = {}
        path = list(sys.path)
        exec("\n".join(lines[: next(i for i, line in enumerate(lines) if line.startswith("args = ")) + 1]), names)
        sys.path[:] = path
        for made, own in zip(names["args"], arguments(failing), strict=True):  # type: ignore[call-overload]
            assert torch.equal(made, own) if isinstance(own, torch.Tensor) else made == own
        assert len(lines) < 30


@pytest.mark.parametrize(("device", "limit_s"), [("cpu", 1), pytest.param("cuda", 15, marks=pytest.mark.gpu)])
def test_a_crash_and_a_hang_are_told_and_a_right_kernel_has_no_fault(device: str, limit_s: int) -> None:
    args = (torch.ones(1, 3, device=device), torch.ones(3, device=device), 1e-5, 0.0, "fp32")
    assert fault("rmsnorm", "planted.segfault", args, {}) == "crashed: segmentation fault (SIGSEGV)"
    assert f"still running after {limit_s} s" in fault("rmsnorm", "planted.hang", args, {}, limit_s=limit_s)
    assert fault("rmsnorm", "planted.too_narrow", args, {}) == ""
