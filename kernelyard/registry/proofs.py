"""Proofs of determinism as dispatch sees them: a function that finds one, and a judgement whether it still holds.

A kernel proves what it declares by passing its op's frozen correctness matrix on a device, where every case is run twice and
must give the same bits. The registry knows no store: `connect` names the function that looks a proof up, as in `choices`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelyard.registry.answer import YES, Answer, no
from kernelyard.registry.choices import versions_hold
from kernelyard.registry.source import Source

if TYPE_CHECKING:  # `import kernelyard` imports this module, and must cost nothing
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Matrix, Op
    from kernelyard.registry.registry import Registry
    from kernelyard.registry.spec import Proof

MATRIX = "correctness"
"""The matrix that a proof is made on."""

Find = Callable[[str, str, str], "Proof | None"]
"""(op, kernel, device key) -> Proof or None; never raises for an entry it can't read."""

_source: Source[Find] = Source()


def connect(source: Find | str | None) -> None:
    """Where proofs come from: a function, or 'module:function' imported at the first lookup, or nowhere."""
    _source.connect(source)


def find(op: str, kernel: str, device: str) -> Proof | None:
    """The proof stored for a kernel on this kind of device, void or not."""
    source = _source.function()
    if source is None:
        return None
    from kernelyard.registry.machine import identity

    return source(op, kernel, identity(device).key())


def shown(op: Op, kernel: Kernel, device: str, registry: Registry) -> Answer:
    """Whether a kernel has shown on this kind of device that equal inputs give equal bits; else why not, and what to run."""
    declared = kernel.determinism
    if declared == "none":
        return no("determinism was asked for and it declares none")
    proof = find(op.name, kernel.name, device)
    if proof is None:
        return no(f"determinism was asked for; it declares {declared} but has not shown it here: run `{command(op, kernel, device)}`")
    answer = holds(proof, op, kernel, registry)
    return answer or no(f"determinism was asked for; what it showed here is void, {answer.reason}: run `{command(op, kernel, device)}`")


def holds(proof: Proof, op: Op, kernel: Kernel, registry: Registry) -> Answer:
    """Whether a proof counts now; else what has changed since."""
    try:
        now = proof_of(op, kernel, proof.device_key, proof.cases, registry)
    except Exception as error:  # a source file that is gone, a backend that does not import: no proof
        return no(f"what it was shown with can't be read now: {type(error).__name__}: {error}")
    for what in ("contract", "source", "matrix"):
        if getattr(proof, f"{what}_hash") != getattr(now, f"{what}_hash"):
            whose = {"contract": "the contract of the op", "source": "the kernel's source", "matrix": f"the {MATRIX} matrix"}[what]
            return no(f"{whose} has changed since")
    if not (answer := versions_hold(proof.versions, now.versions)):
        return answer
    return YES if proof.determinism == kernel.determinism else no(f"it declared {proof.determinism} then and {kernel.determinism} now")


def proof_of(op: Op, kernel: Kernel, device_key: str, cases: int, registry: Registry) -> Proof:
    """The proof that a check of this many cases, passed now, amounts to."""
    from kernelyard.registry.spec import Proof

    return Proof(
        op.name, kernel.name, device_key, op.contract_hash(), kernel.source_hash(), dict(registry.builder(kernel.backend).versions()),
        MATRIX, frozen(op, device_key.partition("/")[0]).hash, cases, kernel.determinism,
    )  # fmt: skip


def frozen(op: Op, device: str) -> Matrix:
    """The matrix that a proof is made on."""
    return op.matrix(MATRIX, device)


def command(op: Op, kernel: Kernel | None, device: str) -> str:
    """What to run for a proof on a device type: for one kernel, or for all of the op."""
    from kernelyard.registry.machine import default_device

    name = f" --kernel {kernel.name}" if kernel is not None else ""
    return f"kernelyard check {op.name}{name}{'' if device == default_device() else f' --device {device}'}"
