"""Copies by the tensor memory accelerator under one name: Triton 3.9 has renamed what 3.6 calls async_copy_*."""

from triton.experimental.gluon.language.nvidia.hopper import tma

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""(descriptor, coordinates, barrier, shared memory): bytes arrive at the barrier."""
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""(descriptor, coordinates, shared memory): waited for by `tma.store_wait`."""
