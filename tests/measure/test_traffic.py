"""Sums and hazards of a trace, on traces written by hand: no compiler, no interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest

from kernelyard.errors import Unsupported
from kernelyard.measure import accesses
from kernelyard.measure.explaining import Question, coalescing
from kernelyard.measure.traffic import MOST_BYTES, Traffic, measure
from kernelyard.registry.tracing import Access, Kind, Program, Region, Role, See, Trace

BLOCK = 128
X = Region("x", "input", 1 << 20, 4 * 512, 4, (512,), (1,))
Y = Region("y", "output", 1 << 21, 4 * 512, 4, (512,), (1,))
W = Region("w", "workspace", 1 << 22, 4 * 512, 4, (512,), (1,))
REGIONS = {"x": X, "y": Y, "w": W}


def access(
    kind: Kind, tensor: str, program: int, first: int = 0, *, line: int = 1, count: int = BLOCK, active: int | None = None,
    stride: int = 1, changed: bool = True,
) -> Access:  # fmt: skip
    """A block of `count` elements from the `first` on, of which the first `active` lanes are on."""
    addresses = REGIONS[tensor].address + 4 * (first + stride * np.arange(count, dtype=np.int64))
    mask = np.arange(count) < (count if active is None else active)
    return Access(0, (program, 0, 0), kind, line, tensor, addresses, mask, 4, np.full(count, changed) if kind == "store" else None)


def traffic(*steps: Access, model: int = 4096, question: Question | None = None, regions: tuple[Region, ...] = (X, Y, W)) -> Traffic:
    def run(see: See) -> None:
        for step in steps:
            see(step)

    return measure(Trace("kernel", "nowhere.py", (4, 1, 1), 4, regions, run, later_warps=(4,)), model, question)


def copied(line: int = 1) -> list[Access]:
    """y = x by four programs."""
    return [access(kind, name, p, BLOCK * p, line=line) for p in range(4) for kind, name in (("load", "x"), ("store", "y"))]  # type: ignore[arg-type]


def kinds(*steps: Access) -> list[str]:
    return [str(finding.kind) for finding in traffic(*steps).findings]


# Sums ------------------------------------------------------------------------------------------------


def test_a_copy_moves_each_byte_once() -> None:
    report = traffic(*copied())
    assert report.unique_bytes == report.requested_bytes == report.model_bytes == 4096
    assert [one.programs for one in report.instructions] == [4, 4]
    x, y, w = report.tensors
    assert (x.read_requested, x.read_unique, x.written_requested, x.model_bytes) == (2048, 2048, 0, 2048)
    assert (y.written_requested, y.written_unique, y.read_requested) == (2048, 2048, 0)
    assert w.model_bytes == 0


def test_a_second_load_requests_again_and_moves_nothing_new() -> None:
    report = traffic(*(access("load", "x", p, BLOCK * p, line=2) for p in range(4)), *copied())
    assert report.unique_bytes == 4096 and report.requested_bytes == 6144


def test_masked_lanes_request_nothing_and_are_a_share() -> None:
    (one,) = traffic(access("load", "x", 0, active=96)).instructions
    assert one.masked_share == 0.25 and one.requested_bytes == one.unique_bytes == 4 * 96
    assert one.requests == 3 and one.sectors == one.ideal_sectors == 12


def test_an_atomic_reads_and_writes() -> None:
    report = traffic(access("store", "w", 0), access("atomic", "w", 0, line=2))
    assert (report.tensors[2].read_requested, report.tensors[2].written_requested) == (512, 1024)


def test_executions_of_one_line_with_other_block_shapes_are_other_instructions() -> None:
    assert [one.block for one in traffic(access("load", "x", 0), access("load", "x", 0, count=32)).instructions] == [(128,), (32,)]


def test_an_instruction_is_as_wide_as_its_narrowest_execution() -> None:
    aligned, shifted = access("load", "x", 0, count=256), access("load", "x", 1, 1, count=256)
    assert traffic(aligned).instructions[0].access_bytes == 8  # 256 elements for 128 threads
    assert traffic(aligned, access("load", "x", 1, 2, count=256)).instructions[0].access_bytes == 8
    (one,) = traffic(aligned, shifted).instructions
    assert one.access_bytes == 4 and one.programs == 2


def test_a_load_holds_what_another_access_of_its_shape_holds_and_a_store_does_not() -> None:
    (load_x, load_w, store) = traffic(
        access("load", "x", 0, 1, count=256, line=1),
        access("load", "w", 0, count=256, line=2),
        access("store", "y", 0, 1, count=256, line=3),
    ).instructions
    assert (load_x.layout.held, load_w.layout.held, store.layout.held) == ((2,), (2,), (1,))
    assert load_x.sectors > 1.8 * load_x.ideal_sectors


def test_memory_for_patterns_is_bounded_and_the_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [access("load", "x", p, (37 * p) % 300, stride=1 + p % 2, count=32) for p in range(40)]
    (free,) = traffic(*steps).instructions
    monkeypatch.setattr(accesses, "MOST_KEPT_BYTES", 1000)
    (tight,) = traffic(*steps).instructions
    assert (tight.requests, tight.sectors, tight.unique_bytes) == (free.requests, free.sectors, free.unique_bytes)


def test_equal_patterns_are_kept_once() -> None:
    one = accesses.Instruction(accesses.key(access("load", "x", 0)), 4, np.zeros(X.nbytes, np.bool_))
    for program in range(4):
        step = access("load", "x", program, BLOCK * program)
        one.add(step, accesses.covered(step, X))
    assert len(one._patterns) == 1 and one.programs == 4


def test_tensors_too_large_to_watch_are_refused() -> None:
    huge = replace(X, nbytes=MOST_BYTES + 4)
    with pytest.raises(Unsupported, match="smaller --shape"):
        traffic(regions=(huge, Y))


# Hazards ---------------------------------------------------------------------------------------------


def test_a_copy_has_none() -> None:
    assert kinds(*copied()) == []


@pytest.mark.parametrize(
    ("first", "farthest", "words"), [(450, 577, "66 past its end"), (-5, -5, "5 before its start"), (512, 639, "128 past its end")]
)
def test_out_of_bounds_names_the_farthest_element(first: int, farthest: int, words: str) -> None:
    (finding,) = traffic(access("load", "x", 2, first, line=7)).findings
    assert (finding.kind, finding.element, finding.line, finding.program) == ("out-of-bounds", farthest, 7, (2, 0, 0))
    assert words in finding.sentence() and finding.sentence().startswith("line 7: ") and "read out of bounds" in finding.sentence()


def test_masked_lanes_may_point_anywhere() -> None:
    assert kinds(access("load", "x", 3, 450, active=62)) == []
    assert kinds(access("load", "x", 3, 450, active=63)) == ["out-of-bounds"]


def test_out_of_bounds_bytes_are_not_unique_bytes_of_the_tensor() -> None:
    (one,) = traffic(access("load", "x", 0, 450)).instructions
    assert one.unique_bytes == 4 * 62 and one.requested_bytes == 4 * 128


def test_two_programs_that_store_to_one_address_race() -> None:
    (finding,) = traffic(access("store", "y", 0), access("store", "y", 1, 100)).findings
    assert (finding.kind, finding.program, finding.other, finding.element, finding.elements) == (
        "write race",
        (1, 0, 0),
        (0, 0, 0),
        100,
        28,
    )
    assert "with different values" in finding.sentence()


def test_a_race_of_equal_values_is_told() -> None:
    (finding,) = traffic(access("store", "y", 0), access("store", "y", 1, 100, changed=False)).findings
    assert finding.kind == "write race" and "with the same value" in finding.sentence()


def test_only_the_elements_that_meet_decide_whether_values_differ() -> None:
    second = access("store", "y", 1, 100)
    assert second.changed is not None
    second.changed[:28] = False  # those that program 0 stored
    (finding,) = traffic(access("store", "y", 0), second).findings
    assert not finding.differ


def test_one_program_may_store_twice() -> None:
    assert kinds(access("store", "y", 0), access("store", "y", 0)) == []


def test_atomics_may_meet_and_an_atomic_may_not_meet_a_store() -> None:
    assert kinds(access("atomic", "w", 0), access("atomic", "w", 1)) == []
    assert kinds(access("store", "w", 0), access("atomic", "w", 1)) == ["write race"]
    assert kinds(access("atomic", "w", 0), access("store", "w", 1)) == ["write race"]
    assert kinds(access("store", "w", 0), access("atomic", "w", 0), access("atomic", "w", 1)) == ["write race"]


@pytest.mark.parametrize(
    ("first", "second", "said"), [("store", "load", "had stored"), ("load", "store", "had loaded"), ("load", "atomic", "had loaded")]
)
def test_a_load_and_another_programs_store_race_in_either_order(first: Kind, second: Kind, said: str) -> None:
    (finding,) = traffic(access(first, "w", 0), access(second, "w", 1)).findings
    assert finding.kind == "read race" and said in finding.sentence() and "any order" in finding.sentence()


def test_a_program_may_load_what_it_stored_and_many_may_load_one_address() -> None:
    assert kinds(access("store", "w", 0), access("load", "w", 0), access("load", "x", 0), access("load", "x", 1)) == []


def test_a_store_after_loads_of_several_programs_names_none() -> None:
    (finding,) = traffic(access("load", "w", 0), access("load", "w", 1), access("store", "w", 2)).findings
    assert finding.other is None and "another program had loaded" in finding.sentence()


@pytest.mark.parametrize(
    ("tensor", "role", "expected"), [("y", "output", ["read-before-write"]), ("w", "workspace", []), ("x", "input", [])]
)
def test_only_outputs_must_be_written_before_they_are_read(tensor: str, role: Role, expected: list[str]) -> None:
    assert REGIONS[tensor].role == role
    assert kinds(access("load", tensor, 0)) == expected


def test_an_atomic_reads_an_output_before_it_is_written() -> None:
    assert kinds(access("atomic", "y", 0)) == ["read-before-write"]
    assert kinds(access("store", "y", 0), access("atomic", "y", 0)) == []


def test_findings_of_one_kind_and_line_are_one_and_the_farthest_is_named() -> None:
    (finding,) = traffic(access("load", "x", 0, 500), access("load", "x", 1, 600), access("load", "x", 2, 550)).findings
    assert (finding.program, finding.element, finding.elements) == ((1, 0, 0), 727, 116 + 128 + 128)


# Explaining ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "line", "program"),
    [(Question(), 1, (0, 0, 0)), (Question(line=9), 9, (2, 0, 0)), (Question(program=(3, 0, 0)), 1, (3, 0, 0))],
)
def test_the_first_load_or_what_was_named_is_explained(question: Question, line: int, program: Program) -> None:
    steps = [access("store", "y", 0, line=2), *copied(), access("store", "w", 2, line=9)]
    explained = traffic(*steps, question=question).explained
    assert explained is not None and (explained.line, explained.program) == (line, program)


def test_an_access_that_never_ran_can_not_be_explained() -> None:
    with pytest.raises(Unsupported, match="Lines that access memory: 1"):
        traffic(*copied(), question=Question(line=5))


@pytest.mark.parametrize(
    ("step", "first", "second"),
    [
        (
            lambda: access("load", "x", 0),
            "1 element of 4 bytes at once: the block has no more for each",
            "4 sectors of 32, as few as can be",
        ),
        (lambda: access("load", "x", 0, stride=4), "1 element", "4 sectors at best, and touch 16: 75% of what moves"),
        (lambda: access("load", "x", 0, count=512), "4 elements of 4 bytes at once: as much as its addresses", "16 sectors of 32, as few"),
        (lambda: access("load", "x", 0, count=512, active=511), "the mask changes within the 4", "touch 16: 75%"),
        (lambda: access("load", "x", 0, active=0), "all 32 lanes off", "No request"),
    ],
)
def test_two_sentences_say_how_well_a_request_is_coalesced(step: Callable[[], Access], first: str, second: str) -> None:
    explained = traffic(step(), question=Question()).explained
    assert explained is not None
    said = coalescing(asdict(explained))
    assert first in said[0] and second in said[1]


def test_a_report_is_json() -> None:
    report = traffic(*copied(), access("load", "y", 9, 0, line=4), question=Question()).as_dict()
    content = json.loads(json.dumps(report))
    assert content["totals"]["unique_bytes"] == 4096 + 512 and content["totals"]["unique_ratio"] == 1.125
    assert content["findings"][0]["sentence"] and len(content["explained"]["lanes"]) == 32


# Several launches -------------------------------------------------------------------------------------


def test_a_launch_may_read_and_overwrite_what_the_one_before_stored_and_its_own_programs_race_as_ever() -> None:
    first = [access("store", "w", 0), access("store", "y", 0), access("load", "x", 0)]
    later = [replace(one, launch=1) for one in (access("load", "w", 1), access("store", "w", 1), access("store", "y", 2))]
    assert kinds(*first, *later) == []
    assert kinds(*first, *(replace(one, launch=0) for one in later)) == ["read race", "write race", "write race"]
    assert kinds(*first, *later, replace(access("load", "w", 2), launch=1)) == ["read race"]


def test_an_output_that_no_launch_has_written_is_read_too_early_in_the_second_as_in_the_first() -> None:
    assert kinds(access("store", "w", 0), replace(access("load", "y", 0), launch=1)) == ["read-before-write"]
    assert kinds(access("store", "y", 0), replace(access("load", "y", 1), launch=1)) == []
