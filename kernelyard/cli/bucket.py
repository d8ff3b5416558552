"""What `tune --bucket` asks and prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.cache_rules import summary
from kernelyard.cli.output import config_text, table
from kernelyard.errors import UsageError

if TYPE_CHECKING:
    from kernelyard.registry.op import Matrix, Op
    from kernelyard.tuner.answers import Asked
    from kernelyard.tuner.bucket import Bucket, Say
    from kernelyard.tuner.report import TuneReport


class Percent(click.ParamType[float]):
    """`5`, `5%` or `2.5%`: above 0, up to 100."""

    name = "percentage"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error."""
        try:
            number = float(str(value).removesuffix("%"))
        except ValueError:
            number = math.nan
        if not 0 < number <= 100:
            self.fail(f"'{value}' is no percentage above 0 and up to 100, such as 5%.", param, ctx)
        return number


def refuse_alone(percent: float | None, held_out: bool) -> None:
    """--held-out without --bucket has no rule to show the loss of."""
    if held_out and percent is None:
        raise UsageError("--held-out shows what a bucket's rule loses.", do="Add --bucket, or run kernelyard bench OP --matrix held_out.")


def check_shapes(matrices: Sequence[tuple[Op, Matrix]], device: str, *, held_out: bool) -> None:
    """Before anything is measured: two workloads of an op must differ in sizes alone, or a rule has nothing to lie between."""
    from kernelyard.registry.rule import form

    for op, frozen in matrices:
        if held_out:
            op.matrix("held_out", device)
        forms = [form(op.workload(point, device)) for point in dict.fromkeys(frozen.points)]
        if len(forms) == len(set(forms)):
            told = f"{len(forms)} workload{'s' * (len(forms) != 1)} of {len(set(forms))} dtypes, layouts or arguments"
            raise UsageError(f"--bucket needs two workloads of {op.name} that differ in sizes alone.", exists=f"There are {told}.",
                             do="Give a matrix, or --shape twice.")  # fmt: skip


def find_rule(asked: Asked, report: TuneReport, percent: float, told: Say, *, held_out: bool) -> Bucket:
    """Make the rule of a tuned matrix, or take the stored one; with `held_out`, measure what it loses on the op's matrix of that name."""
    from kernelyard.tuner import bucket as buckets

    device = asked.device.type
    unseen = [asked.op.workload(point, device) for point in asked.op.matrix("held_out", device).points] if held_out else []
    found = buckets.from_store(asked, report, percent)
    if found is not None and ("held_out" in found.evidence or not unseen):
        return found
    from kernelyard.tuner import held_out as losses
    from kernelyard.tuner.answers import new_run_id
    from kernelyard.tuner.session import opened

    with opened(replace(asked, run_id=new_run_id())) as session:  # beside the run that made the choices
        made = found or buckets.make(session, report, percent, told)
        return losses.held_out(session, made, unseen, told) if unseen and made.kept else made


def show_bucket(bucket: Bucket) -> None:
    """The portfolio, what it loses where it was made, left out and held out, and whether it is kept."""
    evidence, rule = bucket.evidence, bucket.rule
    fewest = "the fewest" if evidence["exact"] else "few (greedy: too many sets to try all)"
    kept = len(rule.pairs)
    title = f"{rule.op}: {kept} pair{'s' * (kept > 1)} within {rule.percent:g}% of the best on each workload, {fewest}, run {rule.run_id}"
    columns = ("workload", "served by", "config", "loss >", "untuned loss >")
    table(title + (" (from the store)" if bucket.from_cache else ""), columns, [_cells(row) for row in evidence["workloads"]])
    print(f"each workload left out in turn: {summary(evidence['left_out'])}")
    for row in (*evidence["workloads"], *evidence.get("held_out", ())):
        if row["noisy"]:
            print(f"{row['workload']}: noisy ({row['noisy']}): make it again with --force when the machine is quiet")
    if not bucket.kept:
        print("The rule is slower there than what serves untuned: it is not kept, and shapes that were not tuned are served as before.")
    if "held_out" in evidence:
        table("held out: what serves against a quick tune of the shape", columns, [_cells(row) for row in evidence["held_out"]])
        for row in evidence["held_out"]:
            print(f"{row['workload']}: {row['reason']}")
        print(f"held out: {summary([row for row in evidence['held_out'] if row['by_rule']])}")


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    served = row["served_by"]
    return row["workload"], served["kernel"], config_text(served["config"]), _percent(row["loss"]), _percent(row["untuned_loss"])


def _percent(loss: float | None) -> str:
    return "n/a" if loss is None else f"{100 * loss:.1f}%"
