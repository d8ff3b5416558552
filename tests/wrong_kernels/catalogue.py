"""What an entry is: a kernel, and what the checker has to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from kernelyard.contracts.attention import ATTENTION
from kernelyard.contracts.attention_decode import ATTENTION_DECODE
from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.rope import ROPE
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry.backend import Executable
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.op import Matrix, Op, Point
from kernelyard.registry.spec import Config, Determinism, Status, Tolerance, Workload
from kernelyard.verify.check import check_kernel
from kernelyard.verify.defences import ALL
from kernelyard.verify.outcome import CheckReport

LOOSE = replace(RMSNORM, tolerance=lambda workload: Tolerance(2e-2, 1e-6, "what many a test suite has, and no derivation", 1))
OPS = {op.name: op for op in (RMSNORM, ROPE, SOFTMAX, VECTOR_ADD, ATTENTION, ATTENTION_DECODE)} | {"loose rmsnorm": LOOSE}

ROW_POINTS = (
    *(Point(shape, dtype) for shape in ((0, 128), (1, 1), (7, 129)) for dtype in ("float32", "bfloat16", "float16")),
    Point((16, 512), "float32"),
    *(Point((7, 129), "float32", layout) for layout in ("row_strided", "transposed", "broadcast", "offset")),
    Point((64, 512), "float32"),
)
CAUSAL = (("causal", True), ("return_lse", True))
MATRICES = {
    "attention": Matrix(
        "wrong", "attention", tuple(Point((1, 4, 2, *lengths, 8), "float32", statics=CAUSAL) for lengths in ((5, 9), (9, 5)))
    ),
    "attention_decode": Matrix("wrong", "attention_decode", tuple(Point((4, 4, 2, 2, 20, 8, block), "float32") for block in (0, 4))),
    "rmsnorm": Matrix("wrong", "rmsnorm", ROW_POINTS),
    "loose rmsnorm": Matrix("wrong", "rmsnorm", (Point((7, 129), "float16"), Point((16, 256), "bfloat16"))),
    "rope": Matrix("wrong", "rope", (Point((7, 4, 16), "float32"),)),
    "softmax": Matrix("wrong", "softmax", ROW_POINTS),
    "vector_add": Matrix("wrong", "vector_add", tuple(Point((n,), "float32") for n in (0, 1, 129, 1024, 65537))),
}


@dataclass(frozen=True)
class Entry:
    """`make()` gives a fresh executable for each build; `says` must stand in the reason of a failure.

    A kernel makes its tensors on the device of its arguments.
    """

    name: str
    make: Callable[[], Executable]
    says: str = ""
    op: str = "rmsnorm"
    status: Status = Status.WRONG
    defence: str = ""
    determinism: Determinism = Determinism.BITWISE
    only: tuple[str, str] | None = None
    """The one device that it is for, and why it is for no other."""

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if self.only is None else self.only[:1]

    def kernel(self, device: str) -> Kernel:
        support = Support((device,), OPS[self.op].dtypes, unit_last_stride=False)
        op = OPS[self.op].name
        return Kernel(f"torch.{self.name}", op, "torch", "breaks its contract", "none:none", support, determinism=self.determinism)

    def check(self, defences: frozenset[str] = ALL, device: str = "cpu") -> CheckReport:
        def build(kernel: Kernel, workload: Workload, config: Config) -> Executable:
            return self.make()

        return check_kernel(OPS[self.op], self.kernel(device), MATRICES[self.op], device, build=build, defences=defences)


def contract(name: str) -> Op:
    return OPS[name]


def calling(function: Callable[..., Any]) -> Callable[[], Executable]:
    """A kernel that allocates its outputs."""
    return lambda: Executable(function)


def storing(into: Callable[..., None], call: Callable[..., Tensor] | None = None) -> Callable[[], Executable]:
    """A kernel that writes into given outputs, right where it allocates them itself unless `call` says otherwise."""
    return lambda: Executable(call or rmsnorm, into)


def rmsnorm(x: Tensor, w: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
    """The right one."""
    y = RMSNORM.reference(x.float(), None if w is None else w.float(), eps, offset, casting)
    return y.to(x.dtype).contiguous()


def softmax(x: Tensor) -> Tensor:
    """The right one."""
    return SOFTMAX.reference(x.float()).to(x.dtype).contiguous()


def rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, style: str, inverse: bool) -> Tensor:
    """The right one."""
    y = ROPE.reference(x.float(), cos.float(), sin.float(), positions, style, inverse)
    return y.to(x.dtype).contiguous()


def vector_add(a: Tensor, b: Tensor) -> Tensor:
    """The right one."""
    return (a.float() + b.float()).to(a.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, return_lse: bool) -> tuple[Tensor, Tensor]:
    """The right one."""
    out, lse = ATTENTION.reference(q.float(), k.float(), v.float(), scale, causal, return_lse)
    return out.to(q.dtype), lse


def attention_decode(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, scale: float | None) -> Tensor:
    """The right one."""
    return ATTENTION_DECODE.reference(q.float(), k.float(), v.float(), lengths, table, scale).to(q.dtype)
