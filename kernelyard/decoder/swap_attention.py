"""The forward of a swapped attention: the layer's own code, in which two names mean something else.

A forward of transformers calls `apply_rotary_pos_emb` and asks `ALL_ATTENTION_FUNCTIONS` for what computes attention. Both are names
that its code looks up when it runs; a copy of the function with other globals finds ours there. So caches, projections and everything
that a version adds stay the layer's own, and nobody else's functions change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from kernelyard.decoder.swap_masks import GROWS, Seen, seen
from kernelyard.decoder.swap_report import Fallbacks
from kernelyard.decoder.swap_serving import DTYPES, OfLast, Serve, hooked, served_on
from kernelyard.registry.operator import Operator
from kernelyard.registry.pins import active

ROPE = ("apply_rotary_pos_emb",)
INTERFACE = ("ALL_ATTENTION_FUNCTIONS", "get_interface")

Function = Callable[..., Any]

OURS = ("sdpa", "eager")
"""Implementations of transformers whose masks tell all there is to know: others pass packed or paged sequences beside them."""
KNOWN = frozenset(
    ("position_ids", "use_cache", "cache_position", "sliding_window", "is_causal", "output_attentions", "output_hidden_states",
     "return_dict", "logits_to_keep", "num_items_in_batch", "scaling", "dropout")
)  # fmt: skip
"""Arguments of an attention function that are read here, or change nothing in the functions of OURS."""


def why_not(own: Function, names: tuple[str, ...]) -> str:
    """Why these names can't be given another meaning in a forward; empty where they can."""
    inner = inspect.unwrap(own)
    missing = [name for name in names if name not in inner.__code__.co_names]
    if missing or names[0] not in inner.__globals__:
        return f"its forward in this transformers does not use {', '.join(missing or names[:1])}"
    try:
        rebound(own, {})
    except ValueError as error:
        return str(error)
    return ""


def forward(own: Function, serve: Mapping[str, Serve], fallbacks: Fallbacks) -> Function:
    """The layer's forward with the ops of `serve` in it."""
    known = inspect.unwrap(own).__globals__
    meanings: dict[str, Any] = {}
    if "rope" in serve:
        meanings[ROPE[0]] = rope(known[ROPE[0]], serve["rope"], fallbacks)
    if "attention" in serve or "attention_decode" in serve:
        meanings[INTERFACE[0]] = Interface(known[INTERFACE[0]], serve, fallbacks)
    return rebound(own, meanings)


def rebound(function: Function, meanings: Mapping[str, Any]) -> Function:
    """A copy of a function, through all its decorators, in which global names have other meanings; raises ValueError."""
    if not isinstance(function, FunctionType):
        raise ValueError(f"its forward is a {type(function).__name__}, not a function")
    inner = getattr(function, "__wrapped__", None)
    closure, names = function.__closure__ or (), function.__globals__
    if inner is None:
        # Without __name__: torch.compile takes the globals of a named module from that module, and would not see ours.
        names = {name: value for name, value in names.items() if name != "__name__"} | dict(meanings)
    else:
        if all(cell.cell_contents is not inner for cell in closure):
            raise ValueError("its forward has a decorator that does not hold it")
        inside = rebound(inner, meanings)
        closure = tuple(CellType(inside) if cell.cell_contents is inner else cell for cell in closure)
    # A code object of its own: torch.compile keeps what it compiled with the code, and its names are in the globals it was compiled under.
    copy = FunctionType(function.__code__.replace(), names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__, copy.__qualname__, copy.__doc__ = function.__kwdefaults__, function.__qualname__, function.__doc__
    copy.__module__, copy.__annotations__ = function.__module__, function.__annotations__
    if inner is not None:
        copy.__wrapped__ = inside  # type: ignore[attr-defined]
    return copy


# Rotary embedding -------------------------------------------------------------------------------------------


def rope(own: Function, serve: Serve, fallbacks: Fallbacks) -> Function:
    """`apply_rotary_pos_emb` by the op: q and k (batch, heads, seq, dim), cos and sin (batch or 1, seq, dim) with equal halves."""
    tables = OfLast(_tables)

    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *others: Any, **named: Any) -> Any:
        if reason := "it has more arguments" if others or named else _no_rope(q, k, cos, sin):
            fallbacks.note("rope", reason)
            return own(q, k, cos, sin, *others, **named)
        c, s, positions = tables((cos, sin), q.shape[0])
        return tuple(serve(x.transpose(1, 2), c, s, positions).transpose(1, 2) for x in (q, k))

    return apply_rotary_pos_emb


def _tables(cos: Tensor, sin: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """As the op takes them: a row of half a head for each token, and each token's row."""
    half, seq = cos.shape[-1] // 2, cos.shape[1]
    rows = torch.arange(cos.shape[0] * seq, device=cos.device).view(-1, seq)
    c, s = (table[..., :half].reshape(-1, half) for table in (cos, sin))
    return c, s, rows if rows.shape[0] == batch else rows.repeat(batch, 1)


def _no_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> str:
    if not q.dtype == k.dtype == cos.dtype == sin.dtype or q.dtype not in DTYPES:
        return f"dtypes {q.dtype}, {k.dtype}, {cos.dtype}, {sin.dtype}: the op takes one for all here"
    if cos.requires_grad or sin.requires_grad:
        return "cos and sin wait for a gradient, which the op has for q and k alone"
    batch, _, seq, dim = q.shape
    fits = cos.shape == sin.shape and cos.shape[1:] == (seq, dim) and cos.shape[0] in (1, batch) and k.shape[-1] == dim
    return "" if fits else f"cos has shape {tuple(cos.shape)}, q {tuple(q.shape)}"


# Attention --------------------------------------------------------------------------------------------------


class Interface:
    """Stands for ALL_ATTENTION_FUNCTIONS in a swapped forward: gives the op, with the model's own function behind it."""

    def __init__(self, functions: Any, serve: Mapping[str, Serve], fallbacks: Fallbacks) -> None:
        self._functions, self._fallbacks = functions, fallbacks
        self._serve = {op: serve[op] for op in ("attention", "attention_decode") if op in serve}
        self._pinned = {op for op in self._serve if not isinstance(serve[op], Operator)}
        self._devices = {op: served_on(op) for op in self._serve}
        self._seen = OfLast(seen)

    def get_interface(self, implementation: str, default: Function) -> Function:
        """An attention function of transformers' signature."""
        own = self._functions.get_interface(implementation, default)

        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> tuple[Tensor, Any]:
            op = "attention_decode" if query.shape[2] == 1 else "attention"
            if op not in self._serve:
                return own(module, query, key, value, mask, **kwargs)  # type: ignore[no-any-return]
            reason = self._no_kernel(op, query.device.type) or _refused(module, (query, key, value), implementation, kwargs)
            found = reason or self._view(module, query, key, mask, implementation, kwargs)
            if isinstance(found, str):
                self._fallbacks.note(op, found)
                return own(module, query, key, value, mask, **kwargs)  # type: ignore[no-any-return]
            return self._run(op, query, key, value, kwargs.get("scaling"), found), None

        return attend

    def _no_kernel(self, op: str, device: str) -> str:
        """Why the model's own function is as good as the op, which is plain torch there; a pin is taken at its word."""
        if device in self._devices[op] or op in self._pinned:
            return ""
        pinned = not torch.compiler.is_compiling() and any(op == name for name, _ in active().kernels)
        return "" if pinned else f"on {device} no kernel is there for it but plain torch"

    def _view(self, module: Any, query: Tensor, key: Tensor, mask: Any, implementation: str, kwargs: Mapping[str, Any]) -> Seen | str:
        """Which keys the queries see, as the model's own function would take it."""
        batch, _, q_len, _ = query.shape
        kv_len = key.shape[2]
        if mask is not None:
            return self._seen((mask,), batch, q_len, kv_len) if isinstance(mask, Tensor) else "its mask is no tensor"
        if q_len == 1:
            return GROWS
        asked = kwargs.get("is_causal")
        causal = implementation == "sdpa" and bool(getattr(module, "is_causal", True) if asked is None else asked)
        # sdpa's own causal is aligned to the first key: of a static cache that was empty, the rest has not been written yet.
        return Seen(causal, q_len if causal else kv_len, None)

    def _run(self, op: str, query: Tensor, key: Tensor, value: Tensor, scale: float | None, view: Seen) -> Tensor:
        if op == "attention_decode":
            out = self._serve[op](query, key, value, view.lengths, scale=scale)
        else:
            out, _ = self._serve[op](query, key[:, :, : view.keys], value[:, :, : view.keys], scale, causal=view.causal)
        return out.transpose(1, 2).contiguous()  # type: ignore[no-any-return]


def _refused(module: Any, tensors: tuple[Tensor, ...], implementation: str, kwargs: Mapping[str, Any]) -> str:
    """What no op of attention does, whatever the mask."""
    if implementation not in OURS:
        return f"the model's attention is {implementation}, whose masks tell less"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "a gradient is due, and the op has none"
    if kwargs.get("dropout"):
        return "dropout"
    if odd := [name for name, value in kwargs.items() if value is not None and name not in KNOWN]:
        return f"argument {odd[0]}"
    if implementation == "eager" and (hooked(module) or kwargs.get("output_attentions") or module.config.output_attentions):
        return "its weights may be read, which the op does not give"
    first, *others = (tensor.dtype for tensor in tensors)
    return "" if first in DTYPES and all(other == first for other in others) else f"dtypes {first}, {others}"
