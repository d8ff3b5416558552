"""The Triton kernels of matmul that copy by descriptor, as data: what each supports, what of it is tuned and why."""

from __future__ import annotations

from kernelyard.plugins.triton_jit.lines import lines
from kernelyard.plugins.triton_jit.norms import OVERLAP
from kernelyard.plugins.triton_jit.products import MOST_SUMS, MULTIPROCESSORS, RULES, SHARED, STAGES, WARPS, starts_unaligned
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import DTYPE_BYTES, YES, Answer, Config, Determinism, TensorSpec, Workload, no

HALVES = ("bfloat16", "float16")
"""What tensor cores take in either major order; of float32 they take TF32 alone, in one."""
BARRIERS = 1088
"""Bytes of shared memory beside the tiles: 24 to 72, and 1 KiB for a bias."""
PIECES = {"direct": 2, "halves": 2, "whole": 1, "quarters": 4}
"""In how many pieces each way of storing ends and writes a tile."""
MOST_STRIDE = 2**22
"""Elements between rows of the result or of the residual: 256 rows of them stay within 32 bits."""


def _size(workload: Workload) -> int:
    return DTYPE_BYTES[workload.dtype]


def _result_lines(workload: Workload) -> bool:
    """Its rows: that the one column of a result is a line of its own is of no use, as tiles are not turned on their way out."""
    found = lines(TensorSpec((workload.dim("m"), workload.dim("n")), workload.dtype))
    return found is not None and not found.turned


def _fits_with_result(config: Config, workload: Workload) -> bool:
    m, n, k = (int(config[f"block_{name}"]) for name in "mnk")
    result = m * n // PIECES[str(config["store"])]  # a store by pointers exchanges registers first
    beside = m * n // 2 if workload.has("residual") and config["store"] in ("halves", "whole") else 0  # its registers, in the sums' order
    return ((m + n) * k * int(config["num_stages"]) + result + beside) * _size(workload) <= SHARED - BARRIERS


def _writes(config: Config, workload: Workload) -> bool:
    return config["store"] == "direct" or (config["store"] == "quarters") != _result_lines(workload)


def _ends_at_once(config: Config) -> int:
    """Sums that a thread ends and writes at once."""
    return int(config["block_m"]) * int(config["block_n"]) // (32 * int(config["num_warps"])) // PIECES[str(config["store"])]


def _ends_without_spills(config: Config, workload: Workload) -> bool:
    if not _result_lines(workload):
        return _ends_at_once(config) <= (16 if workload.has("residual") else 32)
    heavy = workload.static("activation") == "gelu" or workload.has("residual")
    return not heavy or _ends_at_once(config) <= MOST_SUMS // 2


def _default(workload: Workload) -> Config:
    """What was fastest of a plain form of it at 4096 cubed, where that fills most of the GPU; half as wide, or a quarter, elsewhere.

    Where rows of the result start anywhere, two warpgroups: one spills with half as many columns.
    """
    m, n, lined, added = workload.dim("m"), workload.dim("n"), _result_lines(workload), workload.has("residual")
    wide = -(-m // 128) * -(-n // 256) >= MULTIPROCESSORS // 2 and (lined or not added)
    block_m = 128 if wide or m > 64 else 64
    warps = 8 if wide or (block_m == 128 and not lined) else 4
    tile = {"block_m": block_m, "block_n": 256 if wide else 128, "block_k": 64, "num_warps": warps}
    gelu = workload.static("activation") == "gelu"
    ends = workload.static("activation") != "none" or workload.has("bias") or added
    by_descriptor = "direct" if gelu and added else "halves" if ends else "whole"  # of gelu and a residual, halves spill 16 bytes
    return {**tile, "num_stages": 3 if wide else 4, "store": by_descriptor if lined else "quarters", "overlap": False}


SPACE = ConfigSpace(
    (
        Parameter("block_m", (64, 128, 256), "rows of a tile of the result: a warpgroup's product has 64"),
        Parameter("block_n", (64, 128, 256), "columns of a tile: 128 by 256 read least for a product"),
        Parameter("block_k", (64, 128), "terms at a time: 64 of two bytes are the 128 bytes within which lines are swizzled"),
        WARPS, STAGES,
        Parameter(
            "store", tuple(PIECES), "by halves from registers or by descriptor, as a whole for one stage less, by quarters for ragged rows"
        ),
        OVERLAP,
    ),
    (
        *(rule for rule in RULES if "shared memory" not in rule.reason),
        Constraint(_fits_with_result, "the tiles on their way and the result pass 226 KiB of shared memory"),
        Constraint(
            _ends_without_spills,
            "a thread would spill 24 to 2088 bytes: with gelu or a residual it has registers to end 64 sums at once; where rows of the "
            "result start anywhere, for 32, or 16 with a residual",
        ),
        Constraint(_writes, "a descriptor writes rows that start at multiples of 16 bytes; quarters are for those that don't"),
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
