"""Experiments: the stable names, a folder of their own, nothing that is not finite."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kernelyard.errors import StoreFailed, UsageError
from kernelyard.registry.spec import DeclarationError, DeviceIdentity
from kernelyard.store.results import ResultRow, save_experiment

DEVICE = DeviceIdentity("cpu", "A CPU", "x86_64", "Linux", "cpu-here")
ROW = ResultRow("rmsnorm", "16x4096 fp32", "cpp.onepass", {"threads": 2}, 3.5, 4.5, 3.4, 3.6, {"torch.eager": 9.0}, 71.0)


def save(folder: Path, name: str = "demo", rows: tuple[ResultRow, ...] = (ROW,)) -> Path:
    return save_experiment(name, rows, device=DEVICE, command="kernelyard tune rmsnorm", folder=folder)


def test_a_result_has_the_stable_names_beside_a_note(tmp_path: Path) -> None:
    folder = save(tmp_path)
    content = json.loads((folder / "results.json").read_text())
    assert {"schema", "device", "versions", "commit", "command", "rows"} <= set(content)
    stable = "op workload kernel config device_time_us call_time_us low_us high_us baselines percent_of_ceiling matrix"
    assert set(content["rows"][0]) == set(stable.split())
    assert (folder / "note.md").read_text().startswith("# demo")


def test_a_name_used_twice_on_a_day_keeps_both(tmp_path: Path) -> None:
    first, second = save(tmp_path), save(tmp_path)
    assert first != second and first.name + "-2" == second.name


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "two words"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="experiment name"):
        save(tmp_path, name)


def test_nan_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="finite"):
        save(tmp_path, rows=(ResultRow("o", "w", "k", {}, math.nan, None, None, None),))
    assert not list(tmp_path.iterdir())


def test_a_place_that_can_not_be_written_is_one_clear_line() -> None:
    with pytest.raises(StoreFailed, match="can't be written"):
        save(Path("/dev/null/experiments"))
