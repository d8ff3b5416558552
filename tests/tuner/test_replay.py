"""Recorded spaces and the search of them: what a file keeps, what it refuses, and that a replay is the tuner's own search."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import UsageError
from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.registry.op import Point
from kernelyard.registry.spec import Config, Status, TensorSpec, Timing, Workload, config_key
from kernelyard.tuner import replay
from kernelyard.tuner.bench import Finished, Result
from kernelyard.tuner.recording import record
from kernelyard.tuner.samplers import able, sampling
from kernelyard.tuner.spaces import Recorded, load, median_us, save
from tests.tuner.test_search import SPACE, measured

ROOT = Path(__file__).parents[2]


def workload(size: int, dtype: str = "float32") -> Workload:
    return Workload("twice", (("x", TensorSpec((size,), dtype)),), (), "cpu", (("n", size),))


def recorded(size: int = 8, dtype: str = "float32") -> Recorded:
    configs = list(SPACE.configs(workload(size, dtype)))
    trials = tuple(Finished(config, measured(config)) for config in configs)
    return Recorded("toy.tuned", workload(size, dtype), "a device", SPACE.hash(), SPACE.parameters, (configs[0],), trials, {})


def test_a_space_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    space = recorded()
    space = replace(space, trials=(*space.trials[:-1], Finished(space.trials[-1].config, Result(Status.WRONG, "the third element"))))
    save(space, tmp_path / "folder" / "space.json")
    assert load(tmp_path / "folder" / "space.json") == space


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "kernel": 3}', "\x00", "[" * 200_000])
def test_a_file_that_is_no_recorded_space_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "space.json").write_text(text)
    with pytest.raises(UsageError, match=r"space\.json is no recorded space"):
        load(tmp_path / "space.json")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is no file"):
        load(tmp_path / "pipe")


@pytest.mark.parametrize(
    "place, value",
    [
        (("kernel",), [1]), (("device",), "\x1b[31m"), (("parameters",), []), (("parameters", 0, "values", 0), None),
        (("parameters", 0, "values", 0), 10**400), (("wanted",), []), (("wanted", 0), None), (("configs", 0, "config"), {"other": 1}),
        (("configs", 0, "config"), "x"), (("workload", "tensors"), []), (("workload", "unusual"), [[]]),
    ],
)  # fmt: skip
def test_a_part_that_no_search_could_take_is_refused_by_name(place: tuple[Any, ...], value: object, tmp_path: Path) -> None:
    save(recorded(), tmp_path / "space.json")
    content = json.loads((tmp_path / "space.json").read_text())
    part = content
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    (tmp_path / "space.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"space\.json is no recorded space"):
        load(tmp_path / "space.json")


def test_another_schema_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(json.dumps({"schema": 2}))
    with pytest.raises(UsageError, match="schema 2"):
        load(tmp_path / "new.json")
    with pytest.raises(UsageError, match="replay record"):
        load(tmp_path / "none.json")


def test_a_space_without_a_right_config_has_nothing_to_find(tmp_path: Path) -> None:
    space = recorded()
    save(replace(space, trials=tuple(Finished(one.config, Result(Status.WRONG, "wrong")) for one in space.trials)), tmp_path / "space.json")
    with pytest.raises(UsageError, match="nothing to find"):
        load(tmp_path / "space.json")


@pytest.mark.parametrize("name", able())
def test_every_sampler_arrives_within_the_space(name: str) -> None:
    space = recorded()
    assert all(1 <= replay.trials_needed(space, sampling(name), seed) <= len(space.trials) for seed in range(3))


def test_the_grid_arrives_where_the_best_stands_in_declared_order() -> None:
    space = recorded()
    place = next(i for i, one in enumerate(space.trials) if median_us(one) <= median_us(space.best) * replay.CLOSE)
    assert replay.trials_needed(space, sampling("grid"), 0) == place + 1


def test_a_warm_start_tries_the_near_best_after_the_default() -> None:
    rows = replay.compare([recorded(8), recorded(16)], [sampling("random")], 3)
    assert [(row.start, row.near, row.median) for row in rows if row.start == "warm"] == [("warm", "16 fp32", 2), ("warm", "8 fp32", 2)]


def test_a_blind_start_knows_nothing_and_a_cold_one_the_default() -> None:
    space = recorded()
    space = replace(space, wanted=(space.best.config,))
    (blind, cold) = replay.compare([space], [sampling("random")], 9)
    assert (blind.start, cold.start, cold.upper) == ("blind", "cold", 1) and blind.median > 1


def test_the_same_seeds_give_the_same_rows() -> None:
    spaces, hows = [recorded(8), recorded(16)], [sampling("random"), sampling("tpe")]
    assert replay.compare(spaces, hows, 4) == replay.compare(spaces, hows, 4)


def test_near_is_the_same_space_dtype_and_device_by_doublings() -> None:
    space = recorded(1024)
    others = [recorded(1024, "float16"), replace(recorded(1025), device="another"), recorded(64), recorded(4096)]
    assert replay.nearest(space, [space, *others]) is others[-1]
    assert replay.nearest(space, [space, *others[:2]]) is None


def test_a_failed_config_counts_as_a_trial_and_never_arrives() -> None:
    space = recorded()
    trials = tuple(replace(one, result=Result(Status.CRASHED, "gone")) if one.config != space.best.config else one for one in space.trials)
    failing = replace(space, trials=trials)
    place = [one.config for one in trials].index(failing.best.config)
    assert replay.trials_needed(failing, sampling("grid"), 0) == place + 1


def test_recording_tries_every_config_through_the_tuners_trial(toy: Path) -> None:
    everything = registry.current()
    op, kernel = everything.op("hopeless"), everything.kernel("hopeless", "toy.tuned")
    seen: list[tuple[int, int]] = []
    point = op.workload(Point((20_000,), "float32"), "cpu")
    space = record(everything, kernel, point, identity("cpu"), lambda done, total, one: seen.append((done, total)))
    assert [one.result.status for one in space.trials] == [Status.WRONG, Status.CRASHED, Status.BUILD_FAILED]
    assert seen == [(1, 3), (2, 3), (3, 3)] and space.space_hash == kernel.space.hash()


def test_the_recorded_spaces_of_the_repository_can_be_searched() -> None:
    files = sorted((ROOT / "benchmarks" / "spaces").glob("*.json"))
    spaces = [load(path) for path in files]
    assert len(spaces) >= 2 and all(len(space.trials) == len(space.results()) for space in spaces)
    assert all(replay.nearest(space, spaces) is not None for space in spaces if space.kernel == "cpp.onepass")
    assert all(row.median <= row.configs for row in replay.compare(spaces, [sampling("random")], 2))


def test_an_interval_is_kept_with_each_time() -> None:
    timing = Timing(2.0, 1.5, 2.5, "device", "monotonic", 3, 30)
    config: Config = {"a": 2, "b": 1, "c": False}
    space = replace(recorded(), trials=(Finished(config, Result(Status.OK, timing=timing)),))
    assert space.results()[config_key(config)].timing == timing
