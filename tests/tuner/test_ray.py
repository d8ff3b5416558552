"""Tuning on a Ray cluster of this machine: devices with a CPU each, the toy plugin, nodes that are lost."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelyard.cli import run
from kernelyard.registry import registry
from kernelyard.registry.machine import identity
from kernelyard.registry.spec import Status, config_key
from kernelyard.store.choices import listed
from kernelyard.tuner import cluster, search, studies
from kernelyard.tuner.answers import Asked
from kernelyard.tuner.bench import Result
from kernelyard.tuner.limits import Limits
from kernelyard.tuner.plan import plan
from kernelyard.tuner.progress import Listener, Progress, nobody
from kernelyard.tuner.report import Stopped, TuneReport
from kernelyard.tuner.samplers import sampling
from kernelyard.tuner.side_by_side import side_by_side
from tests.tuner.conftest import FAST, TOY

TIMEOUT_S = 300
"""Ray starts in some seconds, each of its workers in some more: on two busy cores a minute."""


@pytest.fixture(scope="module")
def nodes(toy: Path) -> Iterator[Any]:
    """A cluster of this machine alone, without nodes that have a device."""
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), *sys.path]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        begun = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        yield begun
        begun.shutdown()


@pytest.fixture(scope="module")
def node(nodes: Any) -> Any:
    """One that has a device. Tests add what else they need, and take it away: each takes seconds to start and to leave."""
    return nodes.add_node(num_cpus=1)


def quick() -> Limits:
    return importlib.import_module("toy_plugin").QUICK  # type: ignore[no-any-return]


def tuned(nodes: Any, name: str, listener: Listener = nobody, limits: Limits | None = None, devices: int = 1) -> list[TuneReport]:
    """By so many devices, waited for where the test before has only just left them."""
    everything = registry.current()
    op = everything.op(name)
    asked = Asked(op, everything, identity("cpu"), None, None, True, None, None, "", limits or quick())
    with cluster.connected(nodes.address):
        return list(cluster.tune(asked, [op.workload(op.matrices["performance/cpu"][0], "cpu")], cluster.Devices("cpu", devices), listener))


def trials(name: str, home: Path) -> dict[str, list[Any]]:
    """The trials of each study of an op."""
    storage = studies.open_storage(f"sqlite:///{home / 'kernelyard.db'}")
    found = [one for one in storage.get_all_studies() if one.study_name.startswith(f"{name} ")]
    return {one.study_name: storage.get_all_trials(one._study_id) for one in found}


def complete(found: Sequence[Any]) -> list[str]:
    return sorted(config_key(trial.params) for trial in found if trial.state.name == "COMPLETE")


@pytest.mark.timeout(TIMEOUT_S)
def test_devices_of_one_model_share_a_study_and_a_lost_node_costs_its_running_trial_only(nodes: Any, node: Any, toy: Path) -> None:
    lost = nodes.add_node(num_cpus=1)
    seen: list[Progress] = []

    def lose(event: Progress) -> None:
        seen.append(event)
        if [one.stage for one in seen].count("trial") == 2 and event.stage == "trial":
            nodes.remove_node(lost, allow_graceful=False)

    (report,) = tuned(nodes, "many", lose, devices=2)
    ((_, found),) = trials("many", toy).items()
    assert len(complete(found)) == len(set(complete(found))) == 6 == len(found)
    assert any("was lost (" in event.message and "1 are left" in event.message for event in seen)
    (stored,) = listed("many")
    assert stored.choice == report.workloads[0].choice and stored.choice.run_id == report.run_id


@pytest.mark.timeout(TIMEOUT_S)
def test_devices_of_different_models_have_studies_and_choices_of_their_own(nodes: Any, node: Any, toy: Path) -> None:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if len(usable) < 2:
        pytest.skip("a CPU with fewer threads stands for another model: two cores are needed")
    os.sched_setaffinity(0, {min(usable)})  # what is started now may use one core
    try:
        other = nodes.add_node(num_cpus=1)
    finally:
        os.sched_setaffinity(0, usable)
    from kernelyard.measure import ceiling_file

    smaller = identity("cpu").key().replace(f"-{len(usable)}t", "-1t")
    ceiling_file.update(smaller, {"rates": {"device_key": smaller, **FAST}})
    try:
        reports = tuned(nodes, "idle", devices=2)
    finally:
        nodes.remove_node(other)
    assert {report.device.key() for report in reports} == {identity("cpu").key(), smaller}
    assert len(trials("idle", toy)) == 2 and len({report.run_id for report in reports}) == 2


@pytest.mark.timeout(TIMEOUT_S)
def test_ctrl_c_stores_the_best_so_far_and_every_event_is_one_that_a_run_here_has(nodes: Any, node: Any, toy: Path) -> None:
    seen: list[Progress] = []

    def interrupt(event: Progress) -> None:
        seen.append(event)
        if [one.stage for one in seen].count("trial") == 2 and event.stage == "trial":
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="2 finished trials are kept. The best so far on 20000 fp32, .*, is stored") as caught:
        tuned(nodes, "interrupted", interrupt)
    (best,) = caught.value.report.workloads
    (stored,) = listed("interrupted")
    assert stored.choice == best.choice and best.evidence["interrupted"] and stored.evidence["interrupted"]
    assert {one.state.name for one in trials("interrupted", toy).popitem()[1]} <= {"COMPLETE", "FAIL"}
    assert [one.stage for one in seen][:2] == ["trying", "trial"] and [one.stage for one in seen][-2:] == ["stopping", "done"]
    first, last = next(one for one in seen if one.stage == "trial"), seen[-1]
    assert first.status == "ok" and first.spent["build"] > 0 and first.spent["check"] > 0 and last.spent["time"] > first.spent["time"]


@pytest.mark.timeout(TIMEOUT_S)
def test_a_greedy_config_meets_the_memory_limit_of_its_device_s_worker(nodes: Any, node: Any, toy: Path) -> None:
    seen: list[Progress] = []
    tuned(nodes, "greedy", seen.append, replace(quick(), memory_bytes=3 << 30))
    (greedy,) = [one for one in seen if one.stage == "trial" and one.config["behaviour"] == "memory"]
    assert greedy.status == "crashed" and "out of memory" in greedy.reason


@pytest.mark.timeout(TIMEOUT_S)
def test_several_ops_of_a_command_follow_one_another_on_the_same_devices(nodes: Any, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = nodes.add_node(num_cpus=1)  # which is free at once
    try:
        assert run(["tune", "many", "plain", "--ray", nodes.address, "--device", "cpu", "--json", "--quiet"]) == 0
    finally:
        nodes.remove_node(own)
    content = json.loads(capsys.readouterr().out)
    assert [one["op"] for one in content["runs"]] == ["many", "plain"] and not content["failed"]


def test_a_worker_has_its_share_of_the_memory_where_several_are_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.verify.machine.free_bytes", lambda: 100 << 30)
    assert Limits().memory("cpu", workers=4).data_bytes == int(0.9 * (100 << 30) / 4)
    assert Limits(memory_bytes=1 << 30).memory("cuda", workers=4).resident_bytes == 1 << 30


def test_a_bucket_is_not_made_on_a_cluster(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "rmsnorm", "--ray", "127.0.0.1:1", "--bucket"]) == 2
    assert "--bucket times its pairs against each other on this machine's device" in capsys.readouterr().err


def study_of_many(tmp_path: Path) -> tuple[Any, ...]:
    """An empty study of the toy op with six configs: what `search` is handed, and the study."""
    op = registry.current().op("many")
    workload = op.workload(op.matrices["performance/cpu"][0], "cpu")
    (one,) = plan(registry.current(), op, workload, None).searches
    storage, how = studies.open_storage(f"sqlite:///{tmp_path / 'trials.db'}"), sampling("tpe")
    return studies.open_study(storage, one.kernel, {"op": "many", "label": "8 fp32"}, how.make(0), anew=False), one, workload, how


def test_trials_side_by_side_run_at_the_same_time_and_none_twice(home: Path, tmp_path: Path, toy: Path) -> None:
    (study, one, workload, how), both = study_of_many(tmp_path), threading.Barrier(2, timeout=60)

    def run_one(config: Any) -> Result:
        both.wait()  # never passed by one alone
        return Result(Status.WRONG, "")

    found = search.search(study, one, workload, run_one, lambda *event: None, how, outcomes=side_by_side(2))
    assert sorted(trial.config["work"] for trial in found.finished) == [1, 2, 3, 5, 8, 13]


def test_a_search_side_by_side_that_fails_closes_what_ran(home: Path, tmp_path: Path, toy: Path) -> None:
    (study, one, workload, how), both = study_of_many(tmp_path), threading.Barrier(2, timeout=60)

    def run_one(config: Any) -> Result:
        both.wait()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        search.search(study, one, workload, run_one, lambda *event: None, how, outcomes=side_by_side(2))
    assert [trial.state.name for trial in study.get_trials()] == ["FAIL", "FAIL"]


def test_without_ray_it_says_which_extra_brings_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelyard.tuner.cluster.installed", lambda package: False)
    assert run(["tune", "rmsnorm", "--ray", "auto"]) == 2
    assert "pip install 'kernelyard[ray]'" in capsys.readouterr().err


def test_an_address_where_nobody_answers_is_refused_at_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    assert run(["tune", "rmsnorm", "--ray", "127.0.0.1:1"]) == 2
    assert "no Ray cluster answers at '127.0.0.1:1'" in capsys.readouterr().err


@pytest.mark.timeout(TIMEOUT_S)
def test_a_cluster_without_a_gpu_says_what_it_has(nodes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "many", "--ray", nodes.address, "--device", "cuda"]) == 2
    assert "the Ray cluster has no GPU free." in capsys.readouterr().err
