"""The forwards of swapped norms, MLPs and layers. Each reads its module when it is called, so that `to`, new weights and hooks count.

Where an op would give another dtype than the layer, or skip a module that a hook waits for, the layer's own code serves and is counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn

from kernelyard.decoder.swap_report import Fallbacks
from kernelyard.decoder.swap_serving import DTYPES, Serve, hooked

Forward = Callable[..., Any]


def rmsnorm(own: Forward, serve: Serve, fallbacks: Fallbacks) -> Forward:
    """x * rsqrt(mean(x^2) + eps) in float32, rounded, times the weight: the op's casting 'llama'."""

    @wraps(own)
    def forward(self: Any, hidden_states: Tensor) -> Any:
        if reason := _unlike(hidden_states, self.weight):
            fallbacks.note("rmsnorm", reason)
            return own(self, hidden_states)
        return serve(hidden_states, self.weight, self.variance_epsilon, casting="llama")

    return forward


def swiglu(own: Forward, serve: Serve, fallbacks: Fallbacks) -> Forward:
    """The two products stay the layer's linears, whatever has been made of them (quantised, with adapters); the op joins them."""

    @wraps(own)
    def forward(self: Any, x: Tensor) -> Any:
        if hooked(self.act_fn):
            fallbacks.note("swiglu", "its activation has hooks")
            return own(self, x)
        gate, up = self.gate_proj(x), self.up_proj(x)
        if reason := _unlike(gate, up):
            fallbacks.note("swiglu", reason)
            return self.down_proj(self.act_fn(gate) * up)
        return self.down_proj(serve(gate, up))

    return forward


def add_rmsnorm(own: Forward, serve: Serve, fallbacks: Fallbacks) -> Forward:
    """The sum after attention with the norm that reads it. The sum at a layer's end is normed by the next layer, beyond one module's
    forward: it stays as it is."""
    names, defaults = _passed_on(own)

    @wraps(own)
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        attended = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **given)[0]
        norm = self.post_attention_layernorm
        if reason := _sum_apart(norm, attended, hidden_states):
            fallbacks.note("add_rmsnorm", reason)
            residual = hidden_states + attended
            return residual + self.mlp(norm(residual))
        normed, residual = serve(attended, hidden_states, norm.weight, norm.variance_epsilon, casting="llama")
        return residual + self.mlp(normed)

    return forward


def _passed_on(own: Forward) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What a layer hands to its attention by name: all parameters but self and hidden_states, and their defaults."""
    parameters = list(inspect.signature(inspect.unwrap(own)).parameters.values())[2:]
    named = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    return tuple(one.name for one in named), {one.name: one.default for one in named if one.default is not one.empty}


def _sum_apart(norm: nn.Module, attended: Tensor, residual: Tensor) -> str:
    if hooked(norm):
        return "its post_attention_layernorm has hooks"
    return _unlike(attended, residual) or _unlike(residual, norm.weight)


def _unlike(a: Tensor, b: Any) -> str:
    """Why an op can't take both: torch would promote, the op has one dtype."""
    if a.dtype != b.dtype:
        return f"dtypes differ: {a.dtype} and {b.dtype}"
    return "" if a.dtype in DTYPES else f"the op has no {a.dtype}"
