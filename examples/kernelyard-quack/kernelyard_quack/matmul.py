"""matmul by the functions that quack's public ones call when nothing is tuned: one for products, one with an activation.

quack computes alpha * a @ b + bias + C, and with an activation act(a @ b + bias): what the contract has beyond, a scale of the bias or of
the activated, costs a pass of its own, in float32, and no typical call has it.
"""

from __future__ import annotations

from functools import cache

import torch
from quack.gemm_config import GemmConfig
from quack.gemm_interface import gemm_act, gemm_tuned
from torch import Tensor

from kernelyard.registry.spec import Config, TensorSpec, Workload
from kernelyard_quack.build import Into

ACTIVATIONS = {"relu": "relu", "gelu": "gelu_erf", "gelu_tanh": "gelu_tanh_approx", "silu": "silu"}
"""quack's names. Its 'silu-tanh' is another computation of the same."""


def matmul(workload: Workload, config: Config) -> Into:
    """Operands are what the workload describes, with leading dimensions merged."""
    chosen = gemm_config(*(config[name] for name in ("tile_m", "tile_n", "pingpong", "cluster", "swap_ab")))
    activation = workload.static("activation")
    a_spec, b_spec = workload["a"], workload["b"]
    result = TensorSpec((*a_spec.shape[:-1], workload.dim("n")), workload.dtype)

    def product(
        outputs: tuple[Tensor], a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, scale: float, *rest: str
    ) -> None:
        if bias is not None and scale != 1.0:
            bias = bias.float() * scale
        c = None if residual is None else view(residual, workload["residual"])
        out = view(outputs[0], result)
        gemm_tuned.fn(view(a, a_spec), view(b, b_spec), out, C=c, bias=bias, alpha=float(scale), config=chosen)

    def activated(outputs: tuple[Tensor], a: Tensor, b: Tensor, bias: Tensor | None, residual: None, scale: float, *rest: str) -> None:
        out = view(outputs[0], result)
        into = out if scale == 1.0 else torch.empty(result.shape, dtype=torch.float32, device=out.device)
        gemm_act(
            view(a, a_spec), view(b, b_spec), bias=bias, activation=ACTIVATIONS[str(activation)], postact_out=into, store_preact=False,
            tuned=False, config=chosen,
        )  # fmt: skip
        if scale != 1.0:
            torch.mul(into, scale, out=out)

    return product if activation == "none" else activated


def view(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """The tensor as its workload has it; itself where it is that, as in quack's own use. torch gives sizes of 1 any stride."""
    return tensor if tensor.dim() == len(spec.shape) and 1 not in spec.shape else tensor.as_strided(spec.shape, spec.strides)


@cache
def gemm_config(tile_m: int, tile_n: int, pingpong: bool, cluster: str, swap_ab: bool) -> GemmConfig:
    """quack's record of it, as it makes them for Hopper. Each is kept for ever: quack knows a config again by its address."""
    cluster_m, cluster_n = map(int, cluster.split("x"))
    return GemmConfig(
        tile_m=tile_m, tile_n=tile_n, pingpong=pingpong, cluster_m=cluster_m, cluster_n=cluster_n, swap_ab=swap_ab,
        is_dynamic_persistent=False, device_capacity=9,
    )  # fmt: skip
