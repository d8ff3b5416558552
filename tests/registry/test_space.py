"""Config spaces: what they refuse, allow and try first."""

from __future__ import annotations

import pytest

from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import Config, DeclarationError, TensorSpec, Workload

WORKLOAD = Workload("scale", (("x", TensorSpec((2, 4), "float32")),), dims=(("rows", 2), ("cols", 4)))
BLOCK = Parameter("block", (64, 128), "a warp to four")
STREAM = Parameter("stream", (False, True), "stores past the cache or not")


def fits(config: Config, workload: Workload) -> bool:
    return not (config["stream"] and config["block"] == 64)


SPACE = ConfigSpace((BLOCK, STREAM), (Constraint(fits, "streaming needs blocks of 128"),))


@pytest.mark.parametrize(
    ("name", "values", "why", "told"),
    [
        ("a b", (1,), "x", "not an identifier"),
        ("a", (), "x", "no values"),
        ("a", (1, 1), "x", "repeats a value"),
        ("a", (1,), "", "needs a why"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(name: str, values: tuple[int, ...], why: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        Parameter(name, values, why)


def test_a_space_with_one_name_twice_is_refused() -> None:
    with pytest.raises(DeclarationError, match="repeats a parameter"):
        ConfigSpace((BLOCK, BLOCK))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"block": 64}, "config has ['block'], the space has ['block', 'stream']"),
        ({"block": 64, "stream": False, "more": 1}, "config has"),
        ({"block": 65, "stream": False}, "block=65 is not one of [64, 128]"),
        ({"block": 128.0, "stream": False}, "block=128.0 is not one of"),
        ({"block": 128, "stream": 1}, "stream=1 is not one of [False, True]"),
        ({"block": 64, "stream": True}, "streaming needs blocks of 128"),
    ],
)
def test_a_config_outside_the_space_is_refused_with_the_reason(config: Config, reason: str) -> None:
    answer = SPACE.allows(config, WORKLOAD)
    assert not answer and answer.reason.startswith(reason)


def test_configs_are_those_allowed_in_declared_order() -> None:
    assert list(SPACE.configs(WORKLOAD)) == [
        {"block": 64, "stream": False},
        {"block": 128, "stream": False},
        {"block": 128, "stream": True},
    ]
    assert SPACE.size == 4


def test_the_default_is_the_first_config_allowed_unless_the_author_says_otherwise() -> None:
    assert SPACE.default_for(WORKLOAD) == {"block": 64, "stream": False}
    said = ConfigSpace((BLOCK,), default=lambda workload: {"block": 128}, hints=lambda workload: ({"block": 64},))
    assert said.hints_for(WORKLOAD) == ({"block": 128}, {"block": 64})


def test_a_space_without_parameters_has_one_config() -> None:
    assert list(ConfigSpace().configs(WORKLOAD)) == [{}] and ConfigSpace().default_for(WORKLOAD) == {}


def test_the_hash_changes_with_parameters_values_types_and_constraints_only() -> None:
    same = ConfigSpace([BLOCK, STREAM], [Constraint(lambda c, w: True, "streaming needs blocks of 128")], default=lambda w: {})  # type: ignore[arg-type]
    assert same.hash() == SPACE.hash()
    others = [
        ConfigSpace((BLOCK, STREAM)),
        ConfigSpace((STREAM, BLOCK), SPACE.constraints),
        ConfigSpace((Parameter("block", (64, 128, 256), "x"), STREAM), SPACE.constraints),
        ConfigSpace((BLOCK, Parameter("stream", (0, 1), "x")), SPACE.constraints),
    ]
    assert len({SPACE.hash(), *(space.hash() for space in others)}) == 5
