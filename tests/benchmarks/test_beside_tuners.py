"""benchmarks/beside_tuners.py: that each tool is given the same space and data, and that a tool that fails costs its own row only."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelyard.registry import registry

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The comparison's kernels in the registry."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "beside.declared:plugin")
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    registry.reset()
    yield
    monkeypatch.undo()
    registry.reset()


@pytest.mark.parametrize(("language", "shape"), [("cuda", "8192x4096"), ("cpp", "512x4096")])
@pytest.mark.usefixtures("beside")
def test_kernel_tuner_is_given_the_configs_of_the_space_and_no_others(language: str, shape: str) -> None:
    from beside.by_kernel_tuner import parameters
    from beside.found import space_of

    _, configs = space_of(language, shape)
    assert math.prod(len(values) for values in parameters(configs).values()) == len(configs)


@pytest.mark.usefixtures("beside")
def test_triton_autotune_is_given_the_configs_of_the_space_and_no_others() -> None:
    from beside.by_autotune import tuned
    from beside.found import space_of

    _, configs = space_of("triton", "8192x4096")
    given = [(c.kwargs["ROWS"], c.num_warps, c.kwargs["HINT"], c.kwargs["EARLY"]) for c in tuned(configs, do_bench=lambda call: 0).configs]
    assert given == [tuple(config.values()) for config in configs]


@pytest.mark.usefixtures("beside")
def test_bf16_bits_are_those_of_torch() -> None:
    from beside.by_kernel_tuner import narrowed, widened

    values = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    expected = torch.from_numpy(values).bfloat16()
    assert (narrowed(values) == expected.view(torch.int16).numpy().view(np.uint16)).all()
    assert (widened(narrowed(values)) == expected.float().numpy()).all()


@pytest.mark.parametrize(("steps", "right"), [(1, True), (2, False)])
@pytest.mark.usefixtures("beside")
def test_kernel_tuner_is_told_that_two_steps_of_bf16_are_wrong(steps: int, right: bool) -> None:
    from beside.by_kernel_tuner import verifier

    expected = np.full(8, 0x3F80, np.uint16)
    got = expected.copy()
    got[3] += steps
    assert verifier(0.01)([expected, None], [got, None]) is right


@pytest.mark.usefixtures("beside")
def test_a_tool_that_fails_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import beside_tuners as tuners

    row = tuners.row(tuners.Run("Nothing", "beside.no_such_module", "cpp"), "512x4096")
    assert row["best"] is None and "no_such_module" in row["reason"]
    assert "no_such_module" in tuners.report([row])
    assert sys.modules.pop("beside_tuners")
