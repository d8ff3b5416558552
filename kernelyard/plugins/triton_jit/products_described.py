"""The Triton kernels of matmul that copy by descriptor, as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.lines import lines
from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.products import MULTIPROCESSORS, RULES, SHARED, STAGES, WARPS, starts_unaligned
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, TensorSpec, Workload, no

HALVES = ("bfloat16", "float16")
"""What tensor cores take in either major order; of float32 they take TF32 alone, in one."""
BARRIERS = 1088
"""Bytes of shared memory beside the tiles: 24 to 72, and 1 KiB for a bias."""
MOST_STRIDE = 2**22
"""Elements between rows of the result or of the residual: 256 rows of them stay within 32 bits."""


def _size(workload: Workload) -> int:
    return DTYPE_BYTES[workload.dtype]


def _result_lines(workload: Workload) -> bool:
    return lines(TensorSpec((workload.dim("m"), workload.dim("n")), workload.dtype)) is not None


def _fits_with_result(config: Config, workload: Workload) -> bool:
    m, n, k = (int(config[f"block_{name}"]) for name in "mnk")
    result = m * n if config["store"] == "whole" else m * n // 2  # a direct store exchanges registers first
    return ((m + n) * k * int(config["num_stages"]) + result) * _size(workload) <= SHARED - BARRIERS


def _writes(config: Config, workload: Workload) -> bool:
    return config["store"] == "direct" or _result_lines(workload)


def _default(workload: Workload) -> Config:
    """What was fastest of a plain form of it at 4096 cubed, where that fills most of the GPU; half as wide, or a quarter, elsewhere."""
    m, n = workload.dim("m"), workload.dim("n")
    wide = -(-m // 128) * -(-n // 256) >= MULTIPROCESSORS // 2
    block_m = 128 if wide or m > 64 else 64
    tile = {"block_m": block_m, "block_n": 256 if wide else 128, "block_k": 64, "num_warps": 8 if wide else 4}
    ends = workload.static("activation") != "none" or workload.has("bias") or workload.has("residual")
    store = "direct" if not _result_lines(workload) else "halves" if ends else "whole"
    return {**tile, "num_stages": 3 if wide else 4, "store": store, "overlap": False}


SPACE = ConfigSpace(
    (
        Parameter("block_m", (64, 128, 256), "rows of a tile of the result: a warpgroup's product has 64"),
        Parameter("block_n", (64, 128, 256), "columns of a tile: 128 by 256 read least for a product"),
        Parameter("block_k", (64, 128), "terms at a time: 64 of two bytes are the 128 bytes within which lines are swizzled"),
        WARPS, STAGES,
        Parameter("store", ("direct", "halves", "whole"), "by halves from registers or by descriptor, or as a whole for one stage less"),
        OVERLAP,
    ),
    (
        *(rule for rule in RULES if "shared memory" not in rule.reason),
        Constraint(_fits_with_result, "the tiles on their way and the result pass 226 KiB of shared memory"),
        Constraint(_writes, "rows of the result start at no multiple of 16 bytes, where no descriptor writes"),
    ),
    _default,
)  # fmt: skip


def one_product(workload: Workload) -> Answer:
    """A descriptor has two dimensions here; a batch would be a third. Offsets within a tile are in 32 bits."""
    if any(len(workload[name].shape) != 2 for name in ("a", "b", "residual") if workload.has(name)):
        return no("it has no batch, and leading dimensions are seen as rows only where strides allow it")
    if workload.has("residual") and max(workload["residual"].strides) > MOST_STRIDE:
        return no(f"residual has strides over {MOST_STRIDE}: {workload['residual'].strides}")
    return YES


def in_lines(workload: Workload) -> Answer:
    """Both factors as descriptors take them."""
    for name in "ab":
        if lines(workload[name]) is None:
            return no(f"{name} has no lines at multiples of 16 bytes, its strides are {workload[name].strides}")
    return YES


def _kernel(name: str, summary: str, entry: str, support: Support, **rest: object) -> Kernel:
    files = ("matmul.py", "lines.py", "launch.py", "ending.py", "overlap.py", *rest.pop("files", ()))  # type: ignore[misc]
    return Kernel(
        f"triton.{name}", "matmul", "triton", summary, f"kernelyard.plugins.triton_jit.{entry}", support=support, space=SPACE, files=files,
        determinism=Determinism.RUN_TO_RUN, fallbacks=("triton.tile",), **rest,  # type: ignore[arg-type]
    )  # fmt: skip


LEAST = {"m": 17, "k": 1}
"""Fewer rows are for kernels that split k; nothing to sum is for `tile`."""
MOST = {"m": 2**30, "n": MOST_STRIDE, "k": 2**30}

KERNELS = (
    _kernel(
        "persistent", "tiles copied by descriptor, a fixed grid walks over them", "matmul_persistent:persistent",
        Support(("cuda",), HALVES, unit_last_stride=False, least=LEAST, most=MOST, predicates=(one_product, in_lines)), priority=-3,
    ),
    _kernel(
        "repacked", "factors copied to where their rows start at 16 bytes, then as `persistent`", "matmul_padded:repacked",
        Support(("cuda",), HALVES, unit_last_stride=False, least={"m": 32, "k": 1}, most=MOST, predicates=(one_product, starts_unaligned)),
        priority=-3, files=("matmul_padded.py", "matmul_persistent.py"),
    ),
)  # fmt: skip
