from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernelyard.decoder import memory
from kernelyard.decoder.inside import HostTap, workloads
from kernelyard.decoder.presets import Lengths, Preset
from kernelyard.decoder.profile import profile
from kernelyard.decoder.report import OpShare, ProfileReport, Progress
from kernelyard.decoder.request import request
from kernelyard.decoder.words import rest_change, sentence
from kernelyard.errors import UnknownName, Unsupported, UsageError
from kernelyard.measure.interleave import Plan
from kernelyard.measure.stats import Interval

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

QUICK = Plan(batches=3, most_batches=3, budget_s=0.1, warm_up_s=0.001, sample_us=100.0)


@pytest.fixture(scope="module")
def told() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def report(preset: Preset, told: list[Progress]) -> ProfileReport:
    return profile(preset, "cpu", prompt_lengths=[3, 8], context_lengths=[5], new_tokens=2, compile=False, plan=QUICK, progress=told.append)


@pytest.fixture(scope="module")
def answer(report: ProfileReport) -> Any:
    return json.loads(json.dumps(report.to_json(), allow_nan=False))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, float):
        yield value


def test_each_case_has_a_row_for_each_variant(answer: Any) -> None:
    found = [(row["phase"], row["tokens"], row["context"], row["variant"]) for row in answer["rows"]]
    cases = [("prefill", 3, 0), ("prefill", 8, 0), ("decode", 1, 5)]
    assert found == [(*case, variant) for case in cases for variant in ("reference", "swapped")]


def test_every_figure_is_finite_and_positive_where_it_must_be(answer: Any) -> None:
    assert all(math.isfinite(number) for number in numbers(answer))
    for row in answer["rows"]:
        assert 0 < row["low_ms"] <= row["ms"] <= row["high_ms"]
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["ms"] * 1e3)


def test_the_stable_names_are_there(answer: Any) -> None:
    assert answer["preset"] == "small"
    assert answer["device"]["type"] == "cpu"
    assert {"phase", "tokens", "context", "variant", "ms", "tokens_per_s"} <= set(answer["rows"][0])
    assert {"share", "predicted", "observed"} <= set(answer["amdahl"])


def test_the_law_is_applied_to_every_case_and_decode_stands_first(answer: Any) -> None:
    assert [row["phase"] for row in answer["amdahl"]["rows"]] == ["prefill", "prefill", "decode"]
    assert answer["amdahl"]["phase"] == "decode"
    for row in answer["amdahl"]["rows"]:
        assert 0 < row["share"] <= 1
        assert row["predicted_low"] <= row["predicted"] <= row["predicted_high"]
        assert row["observed_low"] <= row["observed"] <= row["observed_high"]
        assert row["share"] == pytest.approx(min(sum(op["share"] for op in row["ops"]), 1.0))


def test_softmax_is_met_in_decode_alone_and_norms_as_often_as_layers_have_them(report: ProfileReport) -> None:
    prefill, _, decode = ({op.op: op.calls for op in row.ops} for row in report.amdahl)
    assert prefill == {"rmsnorm": 5, "vector_add": 4}
    assert decode == {"rmsnorm": 5, "softmax": 2, "vector_add": 4}


def test_every_variant_agrees_with_the_reference(report: ProfileReport) -> None:
    assert all(row.agrees and row.logit_difference < 1e-3 for row in report.rows)


def test_each_case_is_told_in_a_sentence_that_names_the_kernels(report: ProfileReport) -> None:
    assert report.sentences[2].startswith("decode @5: rmsnorm by ")


def test_progress_counts_up_to_its_total(report: ProfileReport, told: list[Progress]) -> None:
    assert [step.done for step in told] == [0, 1, 2, 3, 4]
    assert {step.total for step in told} == {4}


def test_an_op_can_be_swapped_alone(preset: Preset) -> None:
    report = profile(preset, "cpu", prompt_lengths=[4], context_lengths=[], ops=["vector_add"], compile=False, plan=QUICK)
    assert [op.op for op in report.amdahl[0].ops] == ["vector_add"]
    assert report.to_json()["amdahl"]["phase"] == "prefill"


def test_a_variant_that_torch_cannot_make_is_left_out_with_the_reason(preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no working C++ compiler\nmore")

    monkeypatch.setattr(torch, "compile", broken)
    report = profile(preset, "cpu", prompt_lengths=[4], context_lengths=[], plan=QUICK)
    assert [row.variant for row in report.rows] == ["reference", "swapped"]
    assert report.sentences[-1] == "compiled was left out: RuntimeError: no working C++ compiler."


def test_a_wrong_variant_is_named_as_wrong(preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.decoder.examine.compiled", lambda name, model: _wrong(name, model))
    report = profile(preset, "cpu", prompt_lengths=[4], context_lengths=[], plan=QUICK)
    assert [row.agrees for row in report.rows] == [True, True, False]
    assert "prefill 4: compiled is wrong" in report.sentences[1]


def _wrong(name: str, model: Any) -> Any:
    from dataclasses import replace

    from kernelyard.decoder.engines import eager
    from kernelyard.decoder.ops import PLAIN

    unweighted = replace(PLAIN, rmsnorm=lambda x, w, eps: PLAIN.rmsnorm(x, torch.ones_like(w), eps))
    return replace(eager(name, model), ops=unweighted)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"preset": "70b"}, UnknownName, "no preset named '70b'"),
        ({"ops": ["matmul"]}, UnknownName, "no op of the decoder named 'matmul'"),
        ({"ops": []}, UsageError, "no op to swap"),
        ({"dtype": "fp12"}, UsageError, "no dtype 'fp12'"),
        ({"dtype": "int8"}, UsageError, "no dtype int8"),
        ({"device_type": "tpu"}, UsageError, "no device 'tpu'"),
        ({"prompt_lengths": [0]}, UsageError, "Each must be 1 or more"),
        ({"context_lengths": [16], "new_tokens": 0}, UsageError, "Each must be 1 or more"),
        ({"batch": 0}, UsageError, "Each must be 1 or more"),
        ({"prompt_lengths": [], "context_lengths": []}, UsageError, "no prompt and no context"),
        ({"prompt_lengths": [2049]}, UsageError, r"prefill 2049 takes 2049 positions.*Preset tiny has 2048"),
        ({"context_lengths": [2044], "new_tokens": 8}, UsageError, r"decode @2044 takes 2052 positions \(2044 \+ 8\)"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_work(asked: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        request(**{"preset": "tiny", "device_type": "cpu", **asked})


def test_a_profile_that_does_not_fit_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device_type: 1 << 20)
    with pytest.raises(Unsupported, match=r"need 0\.0\d GiB, which doesn't fit on cpu\. Free: 0\.00 GiB"):
        profile("tiny", "cpu")


def test_the_workloads_to_tune_are_known_without_running_the_model(preset: Preset, report: ProfileReport) -> None:
    known = workloads(preset, "cpu", "float32", Lengths((3, 8), (5,), 2))
    met = {
        op.op: {s.workload for row in report.amdahl for o in row.ops if o.op == op.op for s in o.selections} for op in report.amdahl[2].ops
    }
    assert {name: set(found) for name, found in known.items()} == met


def test_a_tap_times_its_op_and_leaves_others_alone() -> None:
    tap = HostTap("softmax")
    other = len
    assert tap("rmsnorm", other) is other
    assert tap("softmax", abs)(-3) == 3
    assert tap.calls == 1
    assert tap.take_us() > 0
    assert tap.take_us() == 0


def share(op: str, before: float, speedup: float, after: float) -> OpShare:
    one = Interval(speedup, speedup, speedup)
    return OpShare(op, 1, Interval(before, before, before), one, Interval(after, after, after), ())


def test_a_gain_that_misses_its_prediction_says_where_the_time_went() -> None:
    # 100 us, 20 of them the op; swapped: the op takes 10, everything else 88 instead of 80.
    ops, observed = (share("rmsnorm", 0.2, 2.0, 10 / 98),), Interval(100 / 98, 1.01, 1.03)
    assert rest_change(ops, observed) == pytest.approx(0.1)
    assert sentence("decode @5", ops, Interval(1.11, 1.1, 1.12), observed).endswith(
        "the model is faster; the intervals don't meet: beside the swapped ops, the model takes 10.0% more time."
    )


def test_a_loss_and_no_difference_are_said_as_plainly_as_a_gain() -> None:
    ops = (share("rmsnorm", 0.2, 0.5, 0.4),)
    assert "the model is slower" in sentence("decode @5", ops, Interval(0.83, 0.8, 0.85), Interval(0.84, 0.82, 0.86))
    assert "neither faster nor slower, within noise" in sentence("decode @5", ops, Interval(1, 0.9, 1.1), Interval(1, 0.9, 1.1))
