"""Schemas: what parses, and the functions made from them."""

from __future__ import annotations

import pytest

from kernelyard.registry.schema import binder, parse_schema, signer
from kernelyard.registry.spec import DeclarationError

RMSNORM = "(Tensor x, Tensor? w=None, float eps=1e-06, *, float offset=0.0, str casting='fp32') -> Tensor"


def test_a_schema_tells_names_types_defaults_and_what_is_keyword_only() -> None:
    arguments, returns = parse_schema(RMSNORM)
    told = [(a.name, a.type, a.default, a.required, a.keyword_only) for a in arguments]
    assert told == [
        ("x", "Tensor", None, True, False),
        ("w", "Tensor?", None, False, False),
        ("eps", "float", 1e-6, False, False),
        ("offset", "float", 0.0, False, True),
        ("casting", "str", "fp32", False, True),
    ]
    assert returns == 1


@pytest.mark.parametrize(
    ("schema", "returns"), [("(Tensor(a!) x, bool half=True) -> (Tensor, Tensor)", 2), ("(Tensor x, int dim=-1) -> Tensor", 1)]
)
def test_schemas_of_other_shapes_parse(schema: str, returns: int) -> None:
    assert parse_schema(schema)[1] == returns


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("(Tensor x)", "must read"),
        ("(Tensor x -> Tensor", "must read"),
        ("Tensor x -> Tensor", "must read"),
        ("(Tensor x) -> ()", "at least one Tensor"),
        ("(tensor x) -> Tensor", "schema argument 'tensor x' must be"),
        ("(Tensor[] x) -> Tensor", "schema argument"),
        ("(Tensor lambda) -> Tensor", "schema argument 'Tensor lambda'"),
        ("(Tensor x, Tensor x) -> Tensor", "repeats an argument"),
        ("(Tensor x, float eps=small) -> Tensor", "'small' is no default for float"),
        ("(Tensor x, bool half=yes) -> Tensor", "'yes' is no default for bool"),
    ],
)
def test_a_schema_that_torch_would_not_take_is_refused(schema: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told.replace("[", r"\[")):
        parse_schema(schema)


def test_binding_gives_all_arguments_in_schema_order() -> None:
    bind = binder(parse_schema(RMSNORM)[0])
    assert bind(1) == (1, None, 1e-6, 0.0, "fp32")
    assert bind(casting="llama", eps=0.1, x=1, w=2) == bind(1, 2, 0.1, casting="llama") == (1, 2, 0.1, 0.0, "llama")


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"x": 1}), ((1,), {"dim": 0})])
def test_binding_refuses_what_python_would(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        binder(parse_schema(RMSNORM)[0])(*args, **kwargs)


def test_required_keyword_only_arguments_after_defaults_bind() -> None:
    bind = binder(parse_schema("(Tensor x, Tensor? w=None, *, int dim, bool half=False) -> Tensor")[0])
    assert bind(1, dim=2) == (1, None, 2, False)


def test_a_signature_of_what_is_no_tensor_raises() -> None:
    with pytest.raises(AttributeError):
        signer(parse_schema("(Tensor x) -> Tensor")[0])(False, 3)
