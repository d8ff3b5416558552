"""The Triton kernels as data: what each supports, in what order they are preferred."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import (
    attention_decode_views,
    attentions,
    normed_products,
    norms,
    pointwise,
    products,
    products_described,
    products_skinny,
    rope_attention_decode_space,
)

KERNELS = (
    *norms.KERNELS, *pointwise.KERNELS, *products.KERNELS, *products_described.KERNELS, *products_skinny.KERNELS, *attentions.KERNELS,
    *attention_decode_views.KERNELS, *normed_products.KERNELS, *rope_attention_decode_space.KERNELS,
)  # fmt: skip
