"""Which op fits which layer: by its exact class, what it has, and what its forward is made of; a reason where it does not.

transformers is never imported: a model that has its classes has done so. A forward is known by the names that its code uses, so that a
version of transformers in which a layer does more is left alone instead of being computed wrongly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kernelyard.decoder import swap_attention, swap_forwards
from kernelyard.decoder.swap_report import Fallbacks
from kernelyard.decoder.swap_serving import Serve

FAMILIES = (("llama", "Llama"), ("qwen2", "Qwen2"), ("mistral", "Mistral"))
PARTS = {
    "rmsnorm": "RMSNorm",
    "add_rmsnorm": "DecoderLayer",
    "swiglu": "MLP",
    "rope": "Attention",
    "attention": "Attention",
    "attention_decode": "Attention",
}
"""The part of a family's class name that each op is put into."""
OPS = tuple(PARTS)

USED = {
    "RMSNorm": {"dtype", "to", "torch", "float32", "pow", "mean", "rsqrt", "variance_epsilon", "weight"},
    "MLP": {"down_proj", "act_fn", "gate_proj", "up_proj"},
    "DecoderLayer": {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"},
}
"""The names in the code of each forward that is replaced, as of transformers 5.0 to 5.24."""
ALIKE = {"RMSNorm": "Norm"}
"""Endings of class names that a reader may take for that part: such layers are listed. By default the part itself."""

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Fit:
    """The forward that a layer gets, None for none; the ops in it; and of the ops asked for, those that don't fit, with the reason."""

    forward: Forward | None = None
    ops: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()


Made = dict[tuple[type, tuple[str, ...]], Forward]
"""Forwards of one swap, which layers of a class share, as they share their class's: torch.compile then compiles one for all."""


def fit(module: nn.Module, serve: Mapping[str, Serve], fallbacks: Fallbacks, made: Made) -> Fit:
    """What a layer gets of the ops asked for; `serve` has what calls each, `made` the forwards so far."""
    asked = [op for op in serve if _alike(module, PARTS[op])]
    if not asked:
        return Fit()
    reasons = {op: reason for op in asked if (reason := _why_not(module, op))}
    fitting = tuple(op for op in asked if op not in reasons)
    key = type(module), fitting
    if fitting and key not in made:
        made[key] = _forward(module, {op: serve[op] for op in fitting}, fallbacks)
    return Fit(made.get(key), fitting, tuple(reasons.items()))


def names_of(part: str) -> tuple[str, ...]:
    """Full names of the classes of a part."""
    return tuple(f"transformers.models.{folder}.modeling_{folder}.{family}{part}" for folder, family in FAMILIES)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _alike(module: nn.Module, part: str) -> bool:
    known = names_of(part)
    return type(module).__name__.endswith(ALIKE.get(part, part)) or any(_name(kind) in known for kind in type(module).__mro__)


def _why_not(module: nn.Module, op: str) -> str:
    """Why an op does not fit a layer; empty where it does."""
    kind, part = type(module), PARTS[op]
    known = names_of(part)
    if _name(kind) not in known:
        base = next((one.__name__ for one in kind.__mro__ if _name(one) in known), None)
        families = ", ".join(family for _, family in FAMILIES)
        return f"it is a subclass of {base} and may mean something else" if base else f"it is of none of the families {families}"
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    code = inspect.unwrap(kind.forward).__code__
    if part in USED and set(code.co_names) != USED[part]:
        other = ", ".join(sorted(set(code.co_names) ^ USED[part]))
        return f"its forward in this transformers is not the one that is known: they differ in {other}"
    return _PECULIAR[op](module)


def _forward(module: nn.Module, serve: Mapping[str, Serve], fallbacks: Fallbacks) -> Forward:
    own = type(module).forward
    if "rmsnorm" in serve:
        return swap_forwards.rmsnorm(own, serve["rmsnorm"], fallbacks)
    if "swiglu" in serve:
        return swap_forwards.swiglu(own, serve["swiglu"], fallbacks)
    if "add_rmsnorm" in serve:
        return swap_forwards.add_rmsnorm(own, serve["add_rmsnorm"], fallbacks)
    return swap_attention.forward(own, serve, fallbacks)


# What each op asks of a layer of the right class ------------------------------------------------------------


def _norm(module: nn.Module) -> str:
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return "it has no weight of one dimension"
    return "" if isinstance(eps, float) and eps >= 0 else f"its variance_epsilon is {eps!r}"


def _mlp(module: nn.Module) -> str:
    kind = type(getattr(module, "act_fn", None))
    return "" if kind.__name__ in ("SiLU", "SiLUActivation") else f"its activation is {kind.__name__}, not SiLU"


def _layer(module: nn.Module) -> str:
    norm = getattr(module, "post_attention_layernorm", None)
    if not isinstance(norm, nn.Module):
        return "it has no post_attention_layernorm"
    reason = _why_not(norm, "rmsnorm")
    return f"of its post_attention_layernorm: {reason}" if reason else ""


_PECULIAR: Mapping[str, Callable[[nn.Module], str]] = {
    "rmsnorm": _norm,
    "add_rmsnorm": _layer,
    "swiglu": _mlp,
    "rope": lambda module: swap_attention.why_not(type(module).forward, swap_attention.ROPE),
    "attention": lambda module: swap_attention.why_not(type(module).forward, swap_attention.INTERFACE),
    "attention_decode": lambda module: swap_attention.why_not(type(module).forward, swap_attention.INTERFACE),
}
