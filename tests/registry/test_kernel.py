"""Kernels: declarations that are refused, support with a reason for each no, and source hashes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kernelyard.registry.kernel import Support
from kernelyard.registry.spec import YES, Answer, DeclarationError, TensorSpec, Workload, no
from tests.registry.fakes import make_kernel


def workload(shape: tuple[int, ...] = (2, 4), dtype: str = "float32", device: str = "cpu", **spec: Any) -> Workload:
    return Workload("scale", (("x", TensorSpec(shape, dtype, **spec)), ("w", None)), (), device, (("rows", shape[0]), ("cols", shape[-1])))


def support(**limits: Any) -> Support:
    return Support(devices=("cpu",), dtypes=("fp32",), **limits)


def narrow(workload: Workload) -> Answer:
    return no("cols is odd") if workload.dim("cols") % 2 else YES


@pytest.mark.parametrize(
    ("limits", "asked", "reason"),
    [
        ({}, workload(device="cuda"), "runs on cpu, not on cuda"),
        ({}, workload(dtype="float16"), "supports float32, not float16"),
        ({"most": {"cols": 3}}, workload(), "cols is 4, the most is 3"),
        ({"least": {"rows": 3}}, workload(), "rows is 2, the least is 3"),
        ({"contiguous": True}, workload(strides=(8, 1)), "x must be contiguous, its strides are (8, 1)"),
        ({}, workload(strides=(1, 2)), "the last dimension of x must be contiguous, its stride is 2"),
        ({"aligned": True}, workload(aligned=False), "x must start at a multiple of 16 bytes"),
        ({"predicates": (narrow,)}, workload((2, 3)), "cols is odd"),
    ],
)
def test_each_limit_refuses_with_its_reason(limits: dict[str, Any], asked: Workload, reason: str) -> None:
    answer = support(**limits).fits(asked)
    assert not answer and answer.reason == reason


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ({"most": {"cols": 4}, "least": {"rows": 2}}, workload()),
        ({"contiguous": True, "aligned": True}, workload((0, 4), strides=(9, 9), aligned=False)),
        ({"contiguous": True}, workload((1, 4), strides=(99, 1))),
        ({}, workload((2, 1), strides=(1, 7))),
        ({"unit_last_stride": False}, workload(strides=(1, 2))),
        ({"predicates": (narrow,)}, workload()),
    ],
)
def test_what_is_inside_every_limit_fits(limits: dict[str, Any], asked: Workload) -> None:
    assert support(**limits).fits(asked)


def test_a_predicate_is_asked_only_about_what_those_before_it_let_through() -> None:
    def never(workload: Workload) -> Answer:
        raise AssertionError("asked about an odd width")

    assert support(predicates=(narrow, never)).fits(workload((2, 3))).reason == "cols is odd"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "one"}, "must be its backend, a dot and a word"),
        ({"name": "fake.", "backend": "fake"}, "must be its backend"),
        ({"name": "cpp.one", "backend": "fake"}, "'fake.word'"),
        ({"entry": "tests.registry.fakes"}, "must be 'package.module:function'"),
        ({"fallbacks": ("fake.one",)}, "names itself as a fallback"),
        ({"fallbacks": "fake.two"}, "not one string"),
        ({"files": "one.cpp"}, "not one string"),
        ({"determinism": "sometimes"}, "sometimes"),
    ],
)
def test_a_kernel_that_is_badly_declared_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_kernel(**{"name": "fake.one", **changes})


@pytest.mark.parametrize(("devices", "dtypes"), [((), ("fp32",)), (("cpu",), ())])
def test_support_for_nothing_is_refused(devices: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError, match="at least one"):
        Support(devices, dtypes)


def test_the_source_hash_follows_the_entry_s_module_and_the_files_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, source = tmp_path / "stranger_kernels.py", tmp_path / "one.cpp"
    module.write_text("raise RuntimeError('imported')\n")
    source.write_text("int main();")
    monkeypatch.syspath_prepend(tmp_path)
    kernel = make_kernel("fake.one", entry="stranger_kernels:one", files=["one.cpp"])
    hashes = [kernel.source_hash()]
    source.write_text("int main(void);")
    hashes.append(kernel.source_hash())
    module.write_text("raise RuntimeError('imported again')\n")
    hashes.append(kernel.source_hash())
    assert len(set(hashes)) == 3 and kernel.folder == tmp_path and "stranger_kernels" not in sys.modules


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module"])
def test_a_kernel_without_a_source_says_so(module: str) -> None:
    with pytest.raises(DeclarationError, match=f"module '{module}' has no source file"):
        make_kernel("fake.one", entry=f"{module}:one").source_hash()
