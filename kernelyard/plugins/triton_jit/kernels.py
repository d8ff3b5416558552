"""The Triton kernels as data: what each supports, in what order they are preferred."""

from __future__ import annotations

from kernelyard.plugins.triton_jit import attention_decode_views, attentions, norms, pointwise, products, products_described

KERNELS = (
    *norms.KERNELS, *pointwise.KERNELS, *products.KERNELS, *products_described.KERNELS, *attentions.KERNELS, *attention_decode_views.KERNELS
)  # fmt: skip
