"""benchmarks/power_cap.py: the orders that it times, on clocks that are told what to read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kernelyard.measure.clocks import Stopwatch

SCRIPT = Path(__file__).parents[2] / "benchmarks/power_cap.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("power_cap", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_is_timed_by_itself_then_in_turn_led_in_by_its_own_replays(script: ModuleType) -> None:
    log: list[tuple[str, int]] = []

    def watch(name: str) -> Stopwatch:
        def elapsed(calls: int) -> float:
            log.append((name, calls))
            return 5.0 * calls

        return Stopwatch("fake", elapsed, grain=2, work=lambda calls: log.append((f"{name} ahead", calls)))

    rows = script.measured({"a": watch("a"), "b": watch("b")})
    assert [name for name, _ in log[: 2 * script.ALONE]] == ["a"] * script.ALONE + ["b"] * script.ALONE
    assert log[-4:] == [("a ahead", 16), ("a", 2), ("b ahead", 16), ("b", 2)]
    assert len(rows) == 2 * (1 + len(script.LEADS)) and {row["median_us"] for row in rows} == {5.0}
    assert "| a | in turn, led in by 8 replays of itself | 5 | 5 | 5 |" in script.table(rows)


def test_without_a_gpu_it_says_so(script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["power_cap.py"])
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert script.main() == 2 and "cuda" in capsys.readouterr().err
