"""Records: what they refuse, and when two workloads are one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.registry.spec import (
    Answer,
    DeclarationError,
    TensorSpec,
    Timing,
    Tolerance,
    Workload,
    config_key,
    contiguous_strides,
    digest,
    dtype_name,
    no,
    timed_only,
)

law = settings(deadline=None)  # a shared machine stalls
SIZES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def of(spec: TensorSpec) -> Workload:
    return Workload("scale", (("x", spec),))


@pytest.mark.parametrize("text", ["bf16", "bfloat16", "torch.bfloat16"])
def test_a_dtype_has_one_name_however_it_is_written(text: str) -> None:
    assert dtype_name(text) == "bfloat16"


def test_an_unknown_dtype_names_those_that_exist() -> None:
    with pytest.raises(DeclarationError, match="no dtype 'fp12'; there are fp32"):
        dtype_name("fp12")


def test_a_no_needs_a_reason() -> None:
    with pytest.raises(DeclarationError, match="without a reason"):
        Answer(False)


def test_a_refusal_to_serve_may_leave_the_time_worth_having() -> None:
    answer = timed_only("it rounds twice")
    assert not answer and answer.timed and "it rounds twice: to time against" in answer.reason
    assert not no("too wide").timed


@pytest.mark.parametrize(
    ("shape", "strides", "told"), [((-1, 4), (), "negative size"), ((2, 3), (3,), "do not fit"), ((2,), (3, 1), "do not fit")]
)
def test_a_tensor_that_cannot_be_is_refused(shape: tuple[int, ...], strides: tuple[int, ...], told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        TensorSpec(shape, "float32", strides)


@law
@given(SIZES)
def test_contiguity_is_torch_s_own(shape: tuple[int, ...]) -> None:
    tensor = torch.empty(shape)
    assert TensorSpec(shape, "float32").contiguous
    assert TensorSpec(shape, "float32", tensor.stride()).contiguous


@law
@given(SIZES, st.data())
def test_contiguity_under_any_strides_is_torch_s_own(shape: tuple[int, ...], data: st.DataObject) -> None:
    strides = tuple(data.draw(st.integers(0, 16)) for _ in shape)
    tensor = torch.empty(4096).as_strided(shape, strides)
    assert TensorSpec(shape, "float32", strides).contiguous == tensor.is_contiguous()


@law
@given(SIZES, st.data())
def test_strides_that_no_element_depends_on_make_no_other_workload(shape: tuple[int, ...], data: st.DataObject) -> None:
    strides = contiguous_strides(shape)
    other = tuple(data.draw(st.integers(0, 99)) if n == 1 or 0 in shape else s for n, s in zip(shape, strides, strict=True))
    one, two = TensorSpec(shape, "float32", strides), TensorSpec(shape, "float32", other)
    assert one == two and of(one).key() == of(two).key() and hash(of(one)) == hash(of(two))


@law
@given(SIZES, SIZES, st.data())
def test_keys_are_equal_exactly_when_workloads_are(a: tuple[int, ...], b: tuple[int, ...], data: st.DataObject) -> None:
    specs = [
        TensorSpec(shape, data.draw(st.sampled_from(["float32", "bfloat16"])), tuple(data.draw(st.integers(0, 3)) for _ in shape),
                   data.draw(st.booleans()))
        for shape in (a, b)
    ]  # fmt: skip
    assert (of(specs[0]) == of(specs[1])) == (of(specs[0]).key() == of(specs[1]).key())


@pytest.mark.parametrize(
    "change",
    [
        Workload("scale", (("x", TensorSpec((2, 4), "float16")),)),
        Workload("scale", (("x", TensorSpec((2, 4), "float32", (8, 1))),)),
        Workload("scale", (("x", TensorSpec((2, 4), "float32", aligned=False)),)),
        Workload("scale", (("x", TensorSpec((2, 4), "float32")),), device="cuda"),
        Workload("scale", (("x", TensorSpec((2, 4), "float32")),), (("casting", "llama"),)),
        Workload("scale", (("x", TensorSpec((2, 4), "float32")), ("w", None))),
        Workload("other", (("x", TensorSpec((2, 4), "float32")),)),
    ],
)
def test_whatever_selects_other_code_has_another_key(change: Workload) -> None:
    assert change.key() != of(TensorSpec((2, 4), "float32")).key()


def test_an_empty_tensor_is_aligned_and_contiguous() -> None:
    assert TensorSpec((0, 4), "float32", (9, 9), aligned=False) == TensorSpec((0, 4), "float32")


def test_an_absent_tensor_is_named_when_asked_for() -> None:
    workload = Workload("scale", (("x", TensorSpec((2,), "float32")), ("w", None)))
    assert workload.has("x") and not workload.has("w") and not workload.has("z")
    with pytest.raises(KeyError, match="w is absent"):
        workload["w"]


def test_a_tolerance_is_the_same_for_all_outputs_but_those_told_apart() -> None:
    second = Tolerance(0.2, 0.0, "sums over rows")
    whole = Tolerance(0.1, 0.0, "sums over columns", others=(second,))
    assert whole.of(0) is whole and whole.of(1) is second and whole.of(2) is whole and second.of(1) is second


def test_a_label_is_short_and_says_what_is_strided() -> None:
    workload = Workload("scale", (("x", TensorSpec((2, 4), "bfloat16", (8, 1))),), dims=(("rows", 2), ("cols", 4)))
    assert workload.label() == "2x4 bf16 x strided"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_time_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(DeclarationError, match="finite and >= 0"):
        Timing(value, 1.0, 1.0, "device", "monotonic", 3, 10)


def test_a_config_s_key_does_not_depend_on_its_order_but_on_types() -> None:
    assert config_key({"a": 1, "b": 2}) == config_key({"b": 2, "a": 1})
    assert config_key({"a": 1}) != config_key({"a": True}) != config_key({"a": "1"})


def test_a_digest_is_of_content() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})
