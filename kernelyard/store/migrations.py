"""The schema, as numbered steps. Append only: a step that was released is never edited, renumbered or removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.errors import StoreFailed
from kernelyard.store.records import now

if TYPE_CHECKING:
    from sqlite_utils import Database

MIGRATIONS: list[Callable[[Database], None]] = []
TABLE = "kernelyard_migrations"


def migration(step: Callable[[Database], None]) -> Callable[[Database], None]:
    """Append a step; its number is its place in the file, from 1."""
    MIGRATIONS.append(step)
    return step


def version(db: Database) -> int:
    """The number of the last step applied to this file; 0 where there is none."""
    if TABLE not in db.table_names():
        return 0
    return int(db.execute(f"select coalesce(max(number), 0) from {TABLE}").fetchone()[0])


def refuse_newer(path: Path, found: int) -> None:
    """Raise StoreFailed where a file was made by a version that knows more steps than this one."""
    if found > len(MIGRATIONS):
        raise StoreFailed(
            f"{path} has schema version {found}, made by a newer kernelyard.",
            exists=f"This kernelyard knows versions up to {len(MIGRATIONS)}.",
            do="Upgrade kernelyard, or set KERNELYARD_HOME to another folder.",
        )


def migrate(db: Database) -> None:
    """Apply the steps that are missing, each in one transaction with its number."""
    for number, step in enumerate(MIGRATIONS, start=1):
        if number > version(db):
            with db.atomic():
                step(db)
                db[TABLE].insert({"number": number, "name": step.__name__, "applied_at": now()})  # type: ignore[union-attr]


@migration
def m001_initial(db: Database) -> None:
    """Runs, choices and measurements."""
    db.create_table(TABLE, {"number": int, "name": str, "applied_at": str}, pk="number")
    db.create_table(
        "runs",
        {
            "id": str, "title": str, "kind": str, "command": str, "device_key": str, "device": str, "matrix_name": str,
            "matrix_hash": str, "versions": str, "commit_id": str, "started_at": str,
        },
        pk="id",
        not_null={"title", "kind", "device_key", "started_at"},
    )  # fmt: skip
    db.create_table(
        "choices",
        {
            "id": int, "title": str, "op": str, "workload": str, "workload_key": str, "shapes": str, "dtype": str, "device_key": str,
            "mode": str, "kernel": str, "config": str, "contract_hash": str, "source_hash": str, "space_hash": str, "versions": str,
            "run_id": str, "reason": str, "evidence": str, "created_at": str,
        },
        pk="id",
        not_null={"op", "workload_key", "device_key", "mode", "kernel", "config", "evidence"},
        foreign_keys=[("run_id", "runs", "id")],
    ).create_index(["op", "workload_key", "device_key", "mode"], unique=True)  # fmt: skip
    db.create_table(
        "measurements",
        {
            "id": int, "run_id": str, "op": str, "workload": str, "workload_key": str, "kernel": str, "config": str,
            "device_key": str, "stage": str, "mode": str, "clock": str, "protocol": str, "median_us": float, "low_us": float,
            "high_us": float, "batches": int, "calls": int, "noisy": str, "matrix_hash": str, "source_hash": str, "created_at": str,
        },
        pk="id",
        not_null={"run_id", "op", "workload_key", "kernel", "config", "mode", "clock", "protocol", "median_us", "low_us", "high_us"},
        foreign_keys=[("run_id", "runs", "id")],
    ).create_index(["op", "workload_key", "kernel"])  # fmt: skip


@migration
def m002_checks(db: Database) -> None:
    """What checks found: kernels that passed with equal bits from run to run, and failures that `repro` takes up."""
    db.create_table(
        "proofs",
        {
            "id": int, "op": str, "kernel": str, "device_key": str, "contract_hash": str, "source_hash": str, "versions": str,
            "matrix_name": str, "matrix_hash": str, "cases": int, "determinism": str, "created_at": str,
        },
        pk="id",
        not_null={"op", "kernel", "device_key", "contract_hash", "source_hash", "versions", "cases", "determinism"},
    ).create_index(["op", "kernel", "device_key"], unique=True)  # fmt: skip
    db.create_table(
        "failures",
        {
            "id": str, "op": str, "kernel": str, "plugin": str, "config": str, "point": str, "edge": str, "seed": int, "device_key": str,
            "device": str, "status": str, "reason": str, "source_hash": str, "created_at": str,
        },
        pk="id",
        not_null={"op", "kernel", "config", "point", "edge", "seed", "device", "status", "reason"},
    ).create_index(["op", "kernel"])  # fmt: skip


@migration
def m003_views(db: Database) -> None:
    """What people look for, in plain words. None reads Optuna's tables: a view of them would stop its own migrations."""

    def told(path: str) -> str:  # one damaged row must not make the whole view an error
        return f"case when json_valid(c.evidence) then json_extract(c.evidence, '$.{path}') end"

    db.create_view(
        "tuned",
        f"""select c.id as choice, c.op, c.workload, c.kernel, c.config, c.device_key as device,
            {told("device_time_us.median")} as median_us, {told("device_time_us.low")} as low_us,
            {told("device_time_us.high")} as high_us, {told("speedup_vs_eager")} as times_faster_than_eager,
            {told("speedup_vs_compile")} as times_faster_than_compiled, {told("percent_of_ceiling")} as percent_of_ceiling,
            c.reason as because, r.title as run, c.run_id, c.created_at as tuned_at, {told("imported.file")} as imported_from
            from choices c left join runs r on r.id = c.run_id""",
    )
    db.create_view(
        "timed",
        """select m.id as measurement, m.op, m.workload, m.kernel, m.config, m.mode as time, m.median_us, m.low_us, m.high_us,
           m.noisy, m.stage, m.device_key as device, r.title as run, m.run_id, r.command, m.created_at as timed_at
           from measurements m join runs r on r.id = m.run_id""",
    )
    db.create_view(
        "failed",
        """select f.id as failure, f.op, f.kernel, f.config, f.status, f.reason, f.edge, f.point, f.device,
           'kernelyard repro ' || f.id as shown_by, f.created_at as failed_at from failures f""",
    )


@migration
def m004_rules(db: Database) -> None:
    """Rules of buckets: which of a few kernels with configs serves a shape that was not tuned."""
    db.create_table(
        "rules",
        {
            "id": int, "op": str, "device_key": str, "mode": str, "percent": float, "matrix_name": str, "matrix_hash": str, "pairs": str,
            "measured": str, "run_id": str, "evidence": str, "created_at": str,
        },
        pk="id",
        not_null={"op", "device_key", "mode", "percent", "pairs", "measured", "evidence"},
        foreign_keys=[("run_id", "runs", "id")],
    ).create_index(["op", "device_key", "mode"], unique=True)  # fmt: skip
