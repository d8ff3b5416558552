"""A kernel's error beside that of plain torch in the same dtype, on the same inputs, against the same reference.

The gate is the derived tolerance, element by element; a bad plain torch never loosens it. Beside it stands what all
elements show together, the norm e = ||got - want|| / ||want||: a tolerance grants every element its worst case, and a
kernel that meets the worst case everywhere does something else than round. What honest arithmetic can come to:

- plain torch makes at least one rounding to the output's dtype, of half a unit u; roundings are spread evenly, so one
  alone gives e <= u / sqrt(3). Its own error E counts as at least that, or luck in few elements would condemn the next.
- a kernel makes as many roundings R as the tolerance grants; independent ones add as squares: sqrt(R) * E.
- accumulation in the wider dtype gives at most a, what the tolerance has beside its roundings, and no more than 2^20
  terms in any order in float32 come to, 2^10 * 2^-24: sqrt(R * E^2 + a^2). So a tolerance that is wider than its
  derivation lets through no more.
- where the contract lets inputs lose bits, as TF32 does, that comes to f in the norm: sqrt(R * E^2 + a^2 + f^2).
- with few elements that matter, n (a softmax's largest), the mean square strays: that of an even spread has a standard
  deviation of 0.9 / sqrt(n) of itself, and six of those are allowed: a factor of sqrt(1 + 5.4 / sqrt(n)).

An accumulation in float16 adds an error of its own to whole rows, which nothing here accounts for.
Only typical values are judged: errors of denormals, of infinities or of zeros have no such law.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelyard.errors import BuildFailed, Unsupported
from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Tolerance, Workload
from kernelyard.verify import compare
from kernelyard.verify.compare import Errors
from kernelyard.verify.inputs import Inputs
from kernelyard.verify.outcome import checking

STRAY = 6 * 0.9
MOST_TERMS = 1 << 20


def plain_torch(op: Op, kernel: Kernel, workload: Workload, inputs: Inputs) -> tuple[Tensor, ...] | None:
    """What the op's fallback makes of the inputs; None where there is none to run here, or the kernel itself is it.

    Behind its outputs what it leaves in arguments that the op writes into, which are as before afterwards.
    """
    table = registry.current()
    eager = table.by_op.get(op.name, {}).get(op.fallback)
    if eager is None or eager.name == kernel.name:
        return None
    with checking(f"{op.fallback}, which {op.name} is compared with,"):
        try:
            if not (table.can_run(eager, workload.device, "check") and eager.support.fits(workload)):
                return None
            outputs = table.build(eager, workload, eager.space.default_for(workload)).call(*inputs.args)
        except (BuildFailed, Unsupported):
            return None
    made = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    written = tuple(tensor.clone() for tensor in inputs.written)
    inputs.restore()
    return (*made, *written)


def far_above(op: Op, kernel: Errors, eager: Errors, got: Tensor, want: Tensor, tolerance: Tolerance) -> str:
    """The norm's verdict in words, both figures in it; empty where rounding explains the kernel's error."""
    if not tolerance.roundings or not got.dtype.is_floating_point:
        return ""
    limit = allowed(eager.norm, got.dtype, tolerance)
    if kernel.norm <= limit or kernel.norm <= (limit := limit * (1 + STRAY / max(compare.effective(want), 1.0) ** 0.5) ** 0.5):
        return ""
    dtype = str(got.dtype).removeprefix("torch.")
    return (
        f"each element is within the tolerance, but the error of all, ||got - want|| / ||want|| = {kernel.norm:.2e}, is "
        f"{kernel.norm / max(eager.norm, 1e-300):.1f} times that of {op.fallback}, {eager.norm:.2e}; {tolerance.roundings} "
        f"rounding(s) to {dtype} and a wide accumulation come to {limit:.2e} at most: a lower precision in the accumulation?"
    )


def allowed(eager_norm: float, dtype: torch.dtype, tolerance: Tolerance) -> float:
    """The norm that honest arithmetic can come to with many elements, from plain torch's own: see the module's derivation."""
    half_unit = torch.finfo(dtype).eps / 2
    wide = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    accumulated = min(max(tolerance.relative - tolerance.roundings * half_unit, 0.0), MOST_TERMS**0.5 * wide)
    least = max(eager_norm, half_unit / 3**0.5)
    return float((tolerance.roundings * least**2 + accumulated**2 + tolerance.factors**2) ** 0.5)


def misses_too(op: Op, plain: tuple[Tensor, ...] | None, inputs: Inputs, tolerance: Tolerance) -> str:
    """A sentence where plain torch itself is outside the tolerance: then its derivation is at fault, whatever the kernel does."""
    if plain is None or all(
        compare.wrong(got, want, tolerance.of(i)) is None for i, (got, want) in enumerate(zip(plain, inputs.want, strict=False))
    ):
        return ""
    return f"{op.fallback} misses this tolerance too: look at its derivation ({tolerance.reason})"
