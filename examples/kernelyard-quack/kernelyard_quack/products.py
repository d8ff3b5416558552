"""quack's matmul as data: what it computes within kernelyard's contract, and what of it can be tuned. Imports nothing of quack."""

from __future__ import annotations

from kernelyard.registry.kernel import Support
from kernelyard.registry.space import ConfigSpace, Constraint, Parameter
from kernelyard.registry.spec import YES, Answer, Config, TensorSpec, Workload, no, timed_only

HALF = ("bfloat16", "float16")
VECTOR = 8
"""Elements of 16 bits in the 16 bytes that TMA wants addresses and strides to be multiples of."""
MOST = 2**20
"""A round bound on each size, far beyond what is timed."""
OTHERWISE = {
    "relu": "relu of NaN is 0, where the contract has NaN",
    "gelu_tanh": "its tanh is tanh.approx.f32, off by up to 2^-11, where the contract has float32",
}
"""Activations that quack computes otherwise than the contract."""
COOPERATIVE = ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256))
PINGPONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
"""Tiles that quack's own autotuner tries on Hopper, by how two warpgroups share the work."""


def one_batch(workload: Workload) -> Answer:
    """Whether leading dimensions are one, as its kernels address (batch, rows, cols)."""
    ranks = {name: len(workload[name].shape) for name in ("a", "b", "residual") if workload.has(name)}
    if set(ranks.values()) in ({2}, {3}):
        return YES
    told = ", ".join(f"{name} has {rank}" for name, rank in ranks.items())
    return no(f"leading dimensions can't be viewed as rows, or as one batch: of dimensions {told}")


def tma_can_address(workload: Workload) -> Answer:
    """Its own check, in every call. What it writes is contiguous."""
    if workload.dim("n") % VECTOR:
        return no(f"n is {workload.dim('n')}, quack needs rows of the result in multiples of {VECTOR}")
    for name in ("a", "b", "bias", "residual"):
        if not workload.has(name):
            continue
        spec = workload[name]
        if not spec.aligned:
            return no(f"{name} must start at a multiple of 16 bytes")
        if not _unit_and_vectors(spec):
            return no(f"the strides of {name} are {spec.strides}: quack needs 1 in one of the last two and multiples of {VECTOR} in others")
    return YES


def _unit_and_vectors(spec: TensorSpec) -> bool:
    """One stride of 1 among the last two; strides of 0 were not tried."""
    *lead, rows, cols = (VECTOR, *spec.strides)[-3:]
    other = rows if cols == 1 else cols
    return 1 in (rows, cols) and all(stride and stride % VECTOR == 0 for stride in (*lead, other))


def residual_after_activation(workload: Workload) -> Answer:
    """C of its activations is added before them."""
    if workload.static("activation") != "none" and workload.has("residual"):
        return no("a residual behind an activation: quack adds it before")
    return YES


def same_activation(workload: Workload) -> Answer:
    """What its sources say of each."""
    why = OTHERWISE.get(str(workload.static("activation")))
    return timed_only(why) if why else YES


def _known_tile(config: Config, workload: Workload) -> bool:
    return (config["tile_m"], config["tile_n"]) in (PINGPONG if config["pingpong"] else COOPERATIVE)


def _default(workload: Workload) -> Config:
    """quack's own for Hopper."""
    return {"tile_m": 128, "tile_n": 192, "pingpong": True, "cluster": "2x1", "swap_ab": False}


MATMUL = Support(
    ("cuda",),
    HALF,
    most=dict.fromkeys(("batch", "m", "n", "k"), MOST),
    least=dict.fromkeys(("batch", "m", "n", "k"), 1),
    unit_last_stride=False,
    predicates=(one_batch, tma_can_address, residual_after_activation, same_activation),
)
SPACE = ConfigSpace(
    parameters=(
        Parameter("tile_m", (128, 192, 256), "rows of the result a tile: 64 to 128 for each of two warpgroups"),
        Parameter("tile_n", (128, 160, 192, 208, 224, 256), "columns of the result a tile: as many as registers hold sums of"),
        Parameter("pingpong", (True, False), "two warpgroups with a tile each, one multiplying while one writes, or both on one tile"),
        Parameter("cluster", ("2x1", "1x2"), "two programs that share a load of b, or of a"),
        Parameter("swap_ab", (False, True), "the transposed product: fewer rows are wasted where m is small"),
    ),
    constraints=(Constraint(_known_tile, "a tile that quack's own autotuner does not try on Hopper"),),
    default=_default,
)
