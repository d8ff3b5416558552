"""benchmarks/attention_memory.py: its arithmetic, what it is told of a quadratic kernel, and a run of it at short lengths on a CPU."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import attention_memory as memory
from kernelyard.errors import Unsupported

linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a process's peak is read from /proc")


@pytest.mark.parametrize(("power", "growth"), [(0.0, "linear"), (1.0, "linear"), (1.1, "linear"), (1.3, "not linear"), (2.0, "not linear")])
def test_the_exponent_is_that_of_the_bytes(power: float, growth: str) -> None:
    found = memory.verdict({length: round(1e6 * length**power) for length in memory.LENGTHS})
    assert found["growth"] == growth and math.isclose(found["exponent"], power, abs_tol=1e-6)


def test_the_longer_half_decides_where_a_constant_hides_the_square() -> None:
    peaks = {length: 10**8 + length**2 for length in memory.LENGTHS}
    assert memory.verdict(peaks)["growth"] == "not linear"
    assert memory.verdict({1024: 5})["growth"] == "too few lengths"


@pytest.mark.parametrize(("seconds", "peak", "told"), [(64.0, 1, "64 s"), (0.1, 12 * 10**9, "12 GB, 10 GB are free")])
def test_what_would_take_too_long_or_too_much_is_not_tried(seconds: float, peak: int, told: str) -> None:
    memory.refuse_longer(59.0, 9 * 10**9, 10**10)
    with pytest.raises(Unsupported, match=told):
        memory.refuse_longer(seconds, peak, 10**10)


@linux
def test_bytes_are_those_that_a_call_holds_at_its_peak() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) + (x + 2)  # three results at once, of which one is given back

    peak, seconds = memory.peak_bytes(lambda: call, [torch.zeros(1 << 23)], "cpu")
    assert 0.98 < peak / (3 * (4 << 23)) < 1.1 and seconds > 0  # Linux counts pages a few hundred KB late


@linux
@pytest.mark.parametrize(
    ("planted", "growth"),
    [
        ("lambda n: (lambda x: (x @ x.mT) @ x, torch.ones(4, n, 16))", "not linear"),
        ("lambda n: (torch.relu, torch.ones(n, 4096))", "linear"),
    ],
)
def test_a_planted_square_is_not_linear_and_a_planted_line_is(planted: str, growth: str) -> None:
    """In a process of its own, as the benchmark does it: what another test frees meanwhile would count here."""
    code = f"""
import torch
from benchmarks import attention_memory as memory
made = {{n: ({planted})(n) for n in (512, 1024, 2048)}}
print(memory.verdict({{n: memory.peak_bytes(lambda: run, [x], "cpu")[0] for n, (run, x) in made.items()}})["growth"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.strip() == growth, done.stderr


@linux
def test_a_run_tells_a_line_for_each_kernel_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lengths = [f"--length={length}" for length in (512, 1024, 2048)]
    kernels = ["--kernel=torch.math", "--kernel=torch.plain"]
    monkeypatch.setattr(sys, "argv", ["attention_memory.py", "--device=cpu", *kernels, *lengths, "--save=memory"])
    assert memory.main() == 0
    told = capsys.readouterr().out
    assert "| torch.math |" in told and told.count("| not linear |") == 1 and told.count("| linear |") == 1
    (saved,) = tmp_path.glob("experiments/*-memory/note.md")
    assert told.strip() in saved.read_text()


def test_a_kernel_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["attention_memory.py", "--device", "cpu", "--kernel", "no.such"])
    assert memory.main() == 2 and "no.such" in capsys.readouterr().err
