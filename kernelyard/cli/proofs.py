"""What a check that passed proves, kept for `kernelyard.use(deterministic=True)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.cli.output import say

if TYPE_CHECKING:
    from kernelyard.registry.op import Matrix
    from kernelyard.registry.registry import Registry
    from kernelyard.verify.outcome import CheckReport


def record(report: CheckReport, matrix: Matrix, table: Registry) -> bool:
    """Keep the proof that a report amounts to; whether it is one. A store that can't be written is a line on stderr.

    It is one where every case of the op's frozen matrix that the kernel supports passed (for kernels of slow builds, of its
    spread), on a device that it serves, with the bits of two runs compared; not where memory was short for a case.
    """
    from kernelyard.errors import StoreFailed
    from kernelyard.registry import proofs
    from kernelyard.registry.machine import identity
    from kernelyard.registry.spec import Determinism
    from kernelyard.store.proofs import save

    op, kernel = table.op(report.op), table.kernel(report.op, report.kernel)
    whole = report.ok and not report.no_room and matrix.hash == proofs.frozen(op, report.device).hash
    if not whole or kernel.determinism is Determinism.NONE or report.device not in kernel.support.devices:
        return False
    try:
        save(proofs.proof_of(op, kernel, identity(report.device).key(), report.cases, table))
    except StoreFailed as error:
        say(f"{kernel.name}: that it is deterministic could not be kept: {error}")
        return False
    return True
