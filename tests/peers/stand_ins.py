"""The functions of Liger 0.8.5 and quack 0.6.5 that the example plugins call, with their signatures and what they mean, in plain torch.
Those that multiply matrices, FlashAttention-4's among them, are in `stand_ins_products`.

They show that a plugin calls what it means to call: argument orders, views, what is returned and what is written. What the real ones
compute is for `kernelyard check` on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernelyard.registry.registry import current
from tests.peers import stand_ins_products

GEMMA = 1


def meaning(op: str, *args: Any) -> Any:
    """What an op means, from the arguments in float32."""
    return current().op(op).reference(*(a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args))


# Liger ------------------------------------------------------------------------------------------------


def calculate_settings(n: int) -> tuple[int, int]:
    return max(1 << (n - 1).bit_length(), 1), 4


def rms_norm_forward(X: Tensor, W: Tensor | None, eps: float, offset: float, casting_mode: str, row_mode: Any) -> tuple[Any, ...]:
    assert isinstance(eps, float) and isinstance(offset, float)
    flat = X.view(-1, X.shape[-1])
    normal = flat.float() * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    if casting_mode == "llama":
        normal = normal.to(X.dtype).float()
    else:
        assert casting_mode == "gemma"
    y = normal if W is None else normal * (W.float() + offset)
    return y.to(X.dtype).view(X.shape), flat, None, *calculate_settings(X.shape[-1]), casting_mode


def rms_norm_backward(
    dY: Tensor, X: Tensor, W: Tensor | None, RSTD: Tensor, offset: float, casting_mode: int, BLOCK_SIZE: int, num_warps: int,
    in_place: bool, row_mode: Any, needs_dw: Any = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    assert casting_mode == GEMMA and not in_place and X.dim() == 2 and X.shape[1] <= BLOCK_SIZE
    dx, dw = _gradient(dY.view(-1, X.shape[1]), X, W, RSTD, offset)
    return dx.to(dY.dtype).view(dY.shape), None if W is None else dw.to(W.dtype)


def _gradient(dy: Tensor, x: Tensor, w: Tensor | None, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    assert rstd.dtype == torch.float32 and rstd.shape == x.shape[:1]
    normal, scaled = x.float() * rstd[:, None], dy.float() if w is None else dy.float() * (w.float() + offset)
    dx = rstd[:, None] * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return dx, (dy.float() * normal).sum(0)


def fused_add_rms_norm_forward(X: Tensor, R: Tensor, W: Tensor, eps: float, offset: float, casting_mode: str) -> tuple[Any, ...]:
    total = X.view(-1, X.shape[-1]) + R.view(-1, X.shape[-1])
    return rms_norm_forward(total, W, eps, offset, casting_mode, None)[0].view(X.shape), total.view(X.shape), None, 1, 4, 2, casting_mode


def fused_add_rms_norm_backward(
    dY: Tensor, dS_out: Tensor, S: Tensor, W: Tensor, RSTD: Tensor, offset: float, casting_mode: int, BLOCK_SIZE: int, num_warps: int,
    num_stages: int, in_place: bool, needs_dw: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    assert casting_mode == GEMMA and not in_place
    cols = dY.shape[-1]
    dx, dw = _gradient(dY.view(-1, cols), S.view(-1, cols), W, RSTD, offset)
    dx = (dx + dS_out.view(-1, cols).float()).to(dY.dtype).view(dY.shape)
    return dx, dx, dw.to(W.dtype)


def liger_softmax_forward(x: Tensor) -> tuple[Tensor, int, int, bool]:
    return torch.softmax(x.float(), -1).to(x.dtype), 1, 4, False


def liger_softmax_backward(dy: Tensor, y: Tensor, BLOCK_SIZE: int, num_warps: int, multi_block_launch: bool) -> Tensor:
    assert not multi_block_launch and dy.shape[-1] <= BLOCK_SIZE
    return y.float().mul(dy.float() - (dy * y).float().sum(-1, keepdim=True)).to(dy.dtype)


def swiglu_forward(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a, b, silu(a.float()).to(b.dtype) * b


def swiglu_backward(a: Tensor, b: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    """Over its inputs, as Liger's."""
    for tensor, result in zip((a, b), meaning("swiglu_backward", dc, a, b), strict=True):
        tensor.copy_(result)
    return a, b


def swiglu_fused_gate_up_forward(y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = y.chunk(2, -1)
    return y, silu(a.float()).to(b.dtype) * b


def swiglu_fused_gate_up_backward(y: Tensor, dc: Tensor, in_place: bool = False) -> Tensor:
    """Of two dimensions, whatever y has."""
    result: Tensor = meaning("swiglu_backward", dc, y, None)[0]
    return result.to(y.dtype).view(-1, y.shape[-1])


def rope_forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1, *, rotary_dim: int
) -> None:
    _rotate(q, k, cos, sin, rotary_dim, 1.0)


def rope_backward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1, *, rotary_dim: int
) -> None:
    _rotate(q, k, cos, sin, rotary_dim, -1.0)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rotary_dim: int, sign: float) -> None:
    """Queries and keys of (batch, heads, tokens, dim) in place, where they are views of contiguous (batch, tokens, heads, dim)."""
    assert q.transpose(1, 2).is_contiguous() and k.transpose(1, 2).is_contiguous() and k.shape[2:] == q.shape[2:] == (len(cos), rotary_dim)
    for x in (q, k):
        low, high = x.float().chunk(2, -1)
        x.copy_(torch.cat((low * cos - high * sign * sin, high * cos + low * sign * sin), -1))


# quack ------------------------------------------------------------------------------------------------


def _rmsnorm_fwd(
    x: Tensor, weight: Tensor | None, out: Tensor, bias: Any = None, rstd: Any = None, mean: Any = None, residual: Tensor | None = None,
    residual_out: Tensor | None = None, eps: float = 1e-6, is_layernorm: bool = False, weight_offset: float = 0.0,
) -> None:  # fmt: skip
    assert bias is rstd is mean is None and not is_layernorm and x.dim() == out.dim() == 2 and not out.data_ptr() % 16
    total = x.float() if residual is None else x.float() + residual.float()
    if residual_out is not None:
        residual_out.copy_(total)
    out.copy_(meaning("rmsnorm", total, weight, eps, weight_offset, "fp32"))


def _rmsnorm_bwd(
    x: Tensor, weight: Tensor | None, dout: Tensor, rstd: Tensor, dx: Tensor, dw_partial: Tensor | None, db_partial: Any = None,
    dresidual_out: Tensor | None = None, dresidual: Any = None, sm_count: int | None = None, mean: Any = None, is_layernorm: bool = False,
    weight_offset: float = 0.0,
) -> None:  # fmt: skip
    assert db_partial is dresidual is mean is None and not is_layernorm and sm_count and len(x)
    result, dw = _gradient(dout, x, weight, rstd, weight_offset)
    dx.copy_(result if dresidual_out is None else result + dresidual_out.float())
    if dw_partial is not None:
        assert dw_partial.dtype == torch.float32 and dw_partial.shape == (sm_count, x.shape[1])
        dw_partial.copy_(dw / sm_count)


def _softmax_fwd(x: Tensor, out: Tensor) -> None:
    assert x.dim() == out.dim() == 2
    out.copy_(torch.softmax(x.float(), -1))


def _softmax_backward(dy: Tensor, y: Tensor, dx: Tensor) -> None:
    assert dy.dim() == y.dim() == dx.dim() == 2
    dx.copy_(meaning("softmax_backward", dy, y))


def _rotary_fwd_out(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: Any, cu_seqlens: Any, out: Tensor, max_seqlen: int, interleaved: bool,
    conjugate: bool,
) -> None:  # fmt: skip
    assert seqlen_offsets is cu_seqlens is None and max_seqlen == x.shape[1] == len(cos) and x.dim() == 4
    style, at = "interleaved" if interleaved else "half", torch.arange(len(cos))
    out.copy_(meaning("rope", x[0], cos, sin, at, style, conjugate)[None])


def modules() -> dict[str, SimpleNamespace]:
    """The packages by module name, as far as the plugins import them."""
    norm = {"rms_norm_forward": rms_norm_forward, "rms_norm_backward": rms_norm_backward}
    added = {"fused_add_rms_norm_forward": fused_add_rms_norm_forward, "fused_add_rms_norm_backward": fused_add_rms_norm_backward}
    gated: list[Callable[..., Any]] = [swiglu_forward, swiglu_backward, swiglu_fused_gate_up_forward, swiglu_fused_gate_up_backward]
    swiglu = _module({function.__name__: function for function in gated})
    return {
        "liger_kernel": _module({}),
        "liger_kernel.ops": _module({"swiglu": swiglu}),
        "liger_kernel.ops.rms_norm": _module(norm),
        "liger_kernel.ops.fused_add_rms_norm": _module(added),
        "liger_kernel.ops.softmax": _module({"_softmax_forward": liger_softmax_forward, "_softmax_backward": liger_softmax_backward}),
        "liger_kernel.ops.swiglu": swiglu,
        "liger_kernel.ops.rope": _module({"rope_forward": rope_forward, "rope_backward": rope_backward}),
        "liger_kernel.ops.utils": _module({"calculate_settings": calculate_settings}),
        "quack": _module({}),
        "quack.rmsnorm": _module({"_rmsnorm_fwd": _rmsnorm_fwd, "_rmsnorm_bwd": _rmsnorm_bwd}),
        "quack.rmsnorm_config": _module({"get_sm_count": lambda cols, device: 3}),
        "quack.softmax": _module({"_softmax_fwd": _softmax_fwd, "_softmax_backward": _softmax_backward}),
        "quack.rotary": _module({"_rotary_fwd_out": _rotary_fwd_out}),
        **stand_ins_products.modules(),
    }


def _module(contents: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**contents)
