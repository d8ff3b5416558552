"""quack's products and FlashAttention-4, with their signatures, what they refuse and what they mean, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from kernelyard.registry.registry import current


@dataclass(frozen=True)
class GemmConfig:
    tile_m: int = 128
    tile_n: int = 192
    tile_k: int | None = None
    num_warps: int | None = None
    pingpong: bool = True
    is_dynamic_persistent: bool = True
    cluster_m: int = 2
    cluster_n: int = 1
    cluster_k: int = 1
    split_k: int = 1
    swap_ab: bool = False
    max_swizzle_size: int = 8
    device_capacity: int = 9
    use_tma_gather: bool = False


DEFAULT = GemmConfig(is_dynamic_persistent=False)
"""quack's own for Hopper."""
ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu_erf": gelu,
    "gelu_tanh_approx": lambda x: gelu(x, approximate="tanh"),
    "silu": silu,
}


def addressable(tensor: Tensor) -> None:
    """What TMA takes."""
    assert not tensor.data_ptr() % 16
    *lead, rows, cols = tensor.stride()
    other = rows if cols == 1 else cols
    width = 16 // tensor.element_size()
    assert 1 in (rows, cols) and not any(stride % width for stride in (*lead, other)), tensor.stride()


def gemm_tuned(
    A: Tensor, B: Tensor, out: Tensor, C: Tensor | None = None, bias: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0,
    *, config: GemmConfig | None = None,
) -> None:  # fmt: skip
    assert config == DEFAULT and isinstance(alpha, float) and beta == 1.0
    assert A.dim() == B.dim() == out.dim() and out.shape == (*A.shape[:-1], B.shape[-1])
    for tensor in (A, B, out, *(() if C is None else (C,))):
        addressable(tensor)
    result = alpha * (A.float() @ B.float())
    for term in (C, bias):
        result = result if term is None else result + term.float()
    out.copy_(result)


def gemm_act(
    A: Tensor, B: Tensor, C: Tensor | None = None, bias: Tensor | None = None, activation: str | None = None, alpha: float = 1.0,
    preact_out: Tensor | None = None, postact_out: Tensor | None = None, *, store_preact: bool = True, tuned: bool = True,
    config: GemmConfig | None = None,
) -> tuple[None, Tensor]:  # fmt: skip
    assert activation and postact_out is not None and preact_out is None and not store_preact and not tuned
    wide = torch.empty(postact_out.shape)
    gemm_tuned(A, B, wide, C, bias, alpha, config=config)
    addressable(postact_out)
    postact_out.copy_(ACTIVATIONS[activation](wide))
    return None, postact_out


def flash_attn_fwd(
    q: Tensor, k: Tensor, v: Tensor, *, seqused_k: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    out: Tensor, lse: Tensor | None = None,
) -> None:  # fmt: skip
    """Of heads inside of tokens. What FA4 would copy is refused; where a score is NaN, lse is -inf."""
    assert softmax_scale is None or softmax_scale > 0.0
    (batch, q_len, heads, dim), kv_len = q.shape, k.shape[1]
    assert k.shape == v.shape == (batch, kv_len, k.shape[2], dim) and out.shape == q.shape and heads % k.shape[2] == 0
    for tensor in (q, k, v, out):
        assert not tensor.data_ptr() % 16 and tensor.stride(-1) == 1
        assert tensor.is_contiguous() or not any(stride % 8 for stride in tensor.stride()[:-1])
    wide = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
    if seqused_k is not None:
        assert causal is (q_len > 1) and lse is None
        out.copy_(current().op("attention_decode").reference(*wide, seqused_k, None, softmax_scale).transpose(1, 2))
        return
    result, logarithms = current().op("attention").reference(*wide, softmax_scale, causal, True)
    out.copy_(result.transpose(1, 2))
    if lse is not None:
        assert lse.shape == (batch, heads, q_len) and lse.dtype == torch.float32
        lse.copy_(logarithms.nan_to_num(-torch.inf, torch.inf, -torch.inf))


def modules() -> dict[str, SimpleNamespace]:
    """By module name, as far as the plugins import them."""
    return {
        "quack.gemm_config": SimpleNamespace(GemmConfig=GemmConfig),
        "quack.gemm_interface": SimpleNamespace(gemm_act=gemm_act, gemm_tuned=SimpleNamespace(fn=gemm_tuned)),
        "flash_attn": SimpleNamespace(),
        "flash_attn.cute": SimpleNamespace(),
        "flash_attn.cute.interface": SimpleNamespace(_flash_attn_fwd=flash_attn_fwd),
    }
