"""The schema of an op: its arguments, and the two functions made from them that every call goes through."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from kernelyard.registry.spec import DeclarationError, require

_ARGUMENT = re.compile(r"^(?P<type>Tensor\??|float\??|int|bool|str)(?P<alias>\(\w!\))? (?P<name>\w+)(?:=(?P<default>.+))?$")
_DEFAULTS: Mapping[str, Callable[[str], Any]] = {
    "float": float, "float?": float, "int": int, "bool": lambda t: {"True": True, "False": False}[t], "str": lambda t: t.strip("\"'"),
}  # fmt: skip
_KINDS: Mapping[str, tuple[type, ...]] = {
    "float": (Real,), "float?": (Real, type(None)), "int": (Integral,), "bool": (bool,), "str": (str,),
}  # fmt: skip
_FACTS = ("shape", "stride()", "dtype", "device", "data_ptr() & 15 == 0", "is_neg()", "__class__")
"""What of a tensor the choice of a kernel may depend on."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an op's schema. `mutated`: the op writes into that tensor, `Tensor(a!) cache`."""

    name: str
    type: str
    default: Any
    required: bool
    keyword_only: bool
    mutated: bool = False

    @property
    def tensor(self) -> bool:
        """Whether it is a tensor, optional or not."""
        return self.type.startswith("Tensor")

    def takes(self, value: Any) -> bool:
        """Whether a scalar is of the argument's type; True is no number."""
        return isinstance(value, _KINDS[self.type]) and (self.type == "bool" or not isinstance(value, bool))

    def scalar(self, value: Any) -> Any:
        """The value in the argument's own type, so that offset=1 and offset=1.0 are one workload."""
        return float(value) if self.type == "float" else value


def parse_schema(schema: str) -> tuple[tuple[Argument, ...], int]:
    """The arguments and the number of returned tensors of a torch.library schema such as
    `(Tensor x, Tensor? w=None, float eps=1e-06, *, float offset=0.0) -> Tensor`."""
    inside, arrow, returns = (part.strip() for part in schema.partition("->"))
    closed = inside.startswith("(") and inside.endswith(")")
    require(bool(arrow) and closed, f"schema '{schema}' must read '(Tensor x, ...) -> Tensor'")
    arguments, keyword_only = list[Argument](), False
    for part in filter(None, (text.strip() for text in inside[1:-1].split(","))):
        if part == "*":
            keyword_only = True
        else:
            arguments.append(_argument(part, keyword_only))
    names = [argument.name for argument in arguments]
    require(len(set(names)) == len(names), f"schema '{schema}' repeats an argument")
    count = len(re.findall(r"\bTensor\b", returns))
    require(count >= 1, f"schema '{schema}' must return at least one Tensor")
    return tuple(arguments), count


def _argument(text: str, keyword_only: bool) -> Argument:
    match = _ARGUMENT.match(text)
    named = match is not None and match["name"].isidentifier() and not keyword.iskeyword(match["name"])
    require(named, f"schema argument '{text}' must be 'Tensor x', 'Tensor? w=None', 'float eps=1e-06', ...")
    assert match is not None
    kind, default = match["type"], match["default"]
    try:
        value = None if default in (None, "None") else _DEFAULTS[kind](default)
    except (ValueError, KeyError) as error:
        raise DeclarationError(f"schema argument '{text}': '{default}' is no default for {kind}") from error
    require(not match["alias"] or kind == "Tensor", f"schema argument '{text}': an op writes into a tensor that is given, not into {kind}")
    return Argument(match["name"], kind, value, default is None, keyword_only, bool(match["alias"]))


def binder(arguments: Sequence[Argument]) -> Callable[..., tuple[Any, ...]]:
    """A function with the op's parameters that returns them all in schema order; raises TypeError as Python does.

    Compiled once for each op, as namedtuple does: 0.2 us a call where a loop over the arguments took 2 us.
    """
    return _compiled(f"lambda {parameters(arguments)}: ({_listed(arguments)})", {"_d": defaults(arguments)})


def parameters(arguments: Sequence[Argument]) -> str:
    """The op's parameters as Python writes them, their defaults taken from a list `_d`."""
    words, starred = list[str](), False
    for argument in arguments:
        if argument.keyword_only and not starred:
            words.append("*")
            starred = True
        words.append(argument.name if argument.required else f"{argument.name}=_d[{len(words) - starred}]")
    return ", ".join(words)


def defaults(arguments: Sequence[Argument]) -> list[Any]:
    """What `_d` is, a value for each argument."""
    return [argument.default for argument in arguments]


def signer(arguments: Sequence[Argument]) -> Callable[..., tuple[Any, ...]]:
    """A function of (grad, *arguments in schema order) that returns what the choice of a kernel may depend on.

    Whether a gradient is due (grad is whether it is enabled); shape, strides, dtype, device, 16-byte alignment, a pending
    negation and the class of each tensor; the value of every scalar. Raises AttributeError for what is no tensor,
    RuntimeError for a tensor without an address.
    """
    due, parts = ["False"], list[str]()
    for a in arguments:
        given = "" if a.type == "Tensor" else f"{a.name} is not None and "
        facts = ", ".join(f"{a.name}.{fact}" for fact in _FACTS)
        parts.append(f"{given}({facts})" if a.tensor else a.name)
        due += [f"{given}{a.name}.requires_grad"] if a.tensor else []
    names = ", ".join(a.name for a in arguments)
    return _compiled(f"lambda _grad, {names}: (_grad and ({' or '.join(due)}), {', '.join(parts)})", {})


def _listed(arguments: Sequence[Argument]) -> str:
    return "".join(f"{argument.name}, " for argument in arguments)


def _compiled(source: str, names: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
    return eval(source, names)  # type: ignore[no-any-return]  # names were checked by parse_schema
