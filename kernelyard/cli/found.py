"""What `check` found, as failures with ids, and where they are kept. A home that can't be written takes no verdict away."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernelyard.cli.output import say
from kernelyard.errors import StoreFailed
from kernelyard.registry.home import home
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.machine import identity
from kernelyard.registry.matrix import point_payload
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import DeclarationError
from kernelyard.store.failures import Failure, save
from kernelyard.verify.jobs import Checked
from kernelyard.verify.journal import Where
from kernelyard.verify.outcome import CaseResult, CheckReport


@dataclass(frozen=True)
class Found:
    """A report, and its failures as they are stored, in the same order; None for one that belongs to no case."""

    report: CheckReport
    failures: tuple[Failure | None, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The failures for JSON, each with its id."""
        pairs = zip(self.report.failures, self.failures, strict=True)
        return [{"id": kept.id if kept else None, **asdict(failure)} for failure, kept in pairs]


def found_in(checked: Checked, table: Registry, kernel: Kernel) -> Found:
    """The failures of one kernel's report, with all that it takes to run each again."""
    if not checked.report.failures:
        return Found(checked.report, ())
    plugin, source = table.plugin_of(kernel).entry_point.name, _source_hash(kernel)
    pairs = zip(checked.report.failures, checked.where, strict=True)
    return Found(checked.report, tuple(_failure(result, where, checked.report, plugin, source) for result, where in pairs))


def _failure(result: CaseResult, where: Where | None, report: CheckReport, plugin: str, source: str) -> Failure | None:
    if where is None:
        return None
    key = identity(report.device).key()
    return Failure(
        report.op, report.kernel, plugin, dict(where.config), point_payload(where.point), where.edge, where.seed, report.device,
        str(result.status), result.reason, source, key,
    )  # fmt: skip


def _source_hash(kernel: Kernel) -> str:
    """Empty for a kernel without a source file, which may be what failed."""
    try:
        return kernel.source_hash()
    except (DeclarationError, OSError, ImportError, ValueError):
        return ""


def keep(found: Sequence[Found]) -> None:
    """Stores all failures, or says why that can't be."""
    failures = [failure for one in found for failure in one.failures if failure is not None]
    if not failures:
        return
    try:
        save(failures)
    except StoreFailed as error:
        say(f"kernelyard: the failures could not be kept, so `repro` will not know their ids: {error}")


@contextlib.contextmanager
def writable_home() -> Iterator[dict[str, str]]:
    """What the children's environment needs: nothing, or a temporary home for builds where the real one can't be written."""
    try:
        home()
    except StoreFailed as error:
        say(f"kernelyard: {error} Kernels are built in a temporary folder.")
        with tempfile.TemporaryDirectory(prefix="kernelyard-home-") as folder:
            yield {"KERNELYARD_HOME": folder}
    else:
        yield {}
