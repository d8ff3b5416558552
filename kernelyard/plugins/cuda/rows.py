"""What the row kernels' entries share: how rows are addressed, and the defines that rows.cuh asks for."""

from __future__ import annotations

import math

from kernelyard.errors import Unsupported
from kernelyard.registry.machine import cuda_ready, identity
from kernelyard.registry.spec import DTYPE_BYTES, Config, TensorSpec, Workload

ELEMENTS = {"float32": "float", "bfloat16": "__nv_bfloat16", "float16": "__half"}
H200_MULTIPROCESSORS = 132


def vector(workload: Workload) -> int:
    """Elements in 16 bytes."""
    return 16 // DTYPE_BYTES[workload.dtype]


def vectors(workload: Workload, config: Config) -> int:
    """16-byte vectors that a thread holds of a row; at least one."""
    together = int(config["threads"]) * int(config.get("cluster", 1))
    return max(math.ceil(workload.dim("cols") // vector(workload) / together), 1)


def stride(spec: TensorSpec, workload: Workload) -> int:
    """Elements from one row to the next; of a single row, its width."""
    return spec.strides[-2] if workload.dim("rows") > 1 and len(spec.shape) > 1 else workload.dim("cols")


def hopper() -> bool:
    """Whether the GPU here has clusters and dependent launches; assumed where there is none, so that what is compiled is what would run."""
    return not cuda_ready() or int(identity("cuda").capability.removeprefix("sm_")) >= 90


def need_hopper(what: str) -> None:
    """Raises Unsupported on a GPU older than sm_90."""
    if not hopper():
        raise Unsupported(f"{what} was asked for on {identity('cuda').capability}.", exists="It needs sm_90 or later.")


def defines(workload: Workload, config: Config) -> dict[str, str | int]:
    """Those of rows.cuh; raises Unsupported where the GPU is older than a config needs."""
    cluster, overlap = int(config.get("cluster", 1)), int(config["overlap"])
    if cluster > 1 or overlap:
        need_hopper("a cluster of thread blocks" if cluster > 1 else "a launch that overlaps the one before")
    each = vectors(workload, config)
    weight = workload["w"].dtype if dict(workload.tensors).get("w") is not None else workload.dtype
    return {
        "ELEMENT": ELEMENTS[workload.dtype],
        "WEIGHT": ELEMENTS[weight],
        "ROW_THREADS": int(config["threads"]),
        "VECTORS": each,
        "WHOLE": int(each * int(config["threads"]) * cluster * vector(workload) == workload.dim("cols")),
        "CLUSTER": cluster,
        "LOAD_CS": int(config["hint"] in ("load", "stream")),
        "STORE_CS": int(config["hint"] in ("store", "stream")),
        "OVERLAP": overlap,
    }


def multiprocessors() -> int:
    """Of the current GPU; without one an H200's."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
    return H200_MULTIPROCESSORS
