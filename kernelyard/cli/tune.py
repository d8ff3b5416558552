"""`tune OP...`: find the fastest right kernel and config for each frozen workload, and keep the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kernelyard.cli.bucket import Percent, check_shapes, find_rule, refuse_alone
from kernelyard.cli.output import Seconds, command_line, device_option, dtype_option, matrix_option, save_option, shape_option
from kernelyard.cli.tune_ray import devices_of, tune_there
from kernelyard.cli.tune_runs import Runs
from kernelyard.errors import UsageError

if TYPE_CHECKING:
    from kernelyard.registry.registry import Registry

INSTEAD = "Tune the performance matrix, then run kernelyard bench {} --matrix held_out."


@click.command(epilog="Example: kernelyard tune rmsnorm --shape 16x4096 --dtype fp32")
@click.argument("ops", nargs=-1, metavar="OP...")
@click.option("--all", "every", is_flag=True, help="Every op with a kernel to tune on this device, plugins' included.")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel (beside the references); may be given again.")
@shape_option("16x4096")
@dtype_option
@matrix_option
@click.option("--trials", type=click.IntRange(min=1), help="Trials for each kernel and workload, at most.")
@click.option("--minutes", type=Seconds(min=0, min_open=True), help="Minutes of search for each kernel and workload, at most.")
@click.option("--patience", type=click.IntRange(min=1), help="End a kernel's search after so many trials without a gain beyond noise.")
@click.option("--sampler", default="tpe", show_default=True, help="tpe, gp, cmaes, random, grid, or hub:package/name of OptunaHub.")
@click.option("--bucket", type=Percent(), is_flag=False, flag_value="5%", metavar="[X%]", help="Then find the fewest pairs of kernel and "
              "config within X% (5%) of each workload's best, and keep a rule for other shapes.")  # fmt: skip
@click.option("--held-out", is_flag=True, help="With --bucket: what its rule loses on the op's held_out matrix.")
@click.option("--force", is_flag=True, help="Measure anew, whatever is stored.")
@click.option("--storage", metavar="URL", envvar="KERNELYARD_STORAGE", show_envvar=True,
              help="Database of the trials, not the store's own: postgresql://user:password@host/name or sqlite:///file.db")  # fmt: skip
@click.option("--ray", metavar="ADDRESS", help="Tune on the free devices of a Ray cluster: auto, host:port, or local for one here.")
@save_option
@device_option
@click.option("--quiet", is_flag=True, help="Print the result and nothing else; problems still go to stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line, on stderr, and the last, the result, on stdout.")
def tune(
    ops: tuple[str, ...],
    every: bool,
    kernels: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    matrix: str | None,
    trials: int | None,
    minutes: float | None,
    patience: int | None,
    sampler: str,
    bucket: float | None,
    held_out: bool,
    force: bool,
    storage: str | None,
    ray: str | None,
    save: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Search the kernels of each OP on its frozen performance matrix, or on sizes of your own.

    Without OP, every op of a --matrix FILE. In a file that `kernelyard.capture` wrote, what took most time comes first:
    count x the stored time where every point has one, else count x the bytes of the cost model.

    Every config is built, checked and timed in a process of its own; the best are timed once more against plain and compiled
    torch. What is tuned already is answered from the store; an interrupted run goes on where it was. Of --trials, --minutes and
    --patience the first that is reached ends a search. Ctrl-C once ends it with the best so far stored, twice at once. Exit code 1
    when on some workload no config was right, or when a bucket's rule was slower than what serves without one.

    With --ray trials run on a cluster, each on a device that it has alone; devices of one model share a search, and each model gets
    its own choices, which are stored here. A node that is lost costs the trials that ran on it; they are tried again on the others.
    """
    from kernelyard.cli.interrupting import twice
    from kernelyard.cli.tune_order import ordered
    from kernelyard.cli.tune_watching import told, watcher
    from kernelyard.cli.workloads import is_file, matrices
    from kernelyard.registry import registry
    from kernelyard.registry.machine import check_device, identity
    from kernelyard.tuner import samplers
    from kernelyard.tuner.answers import Asked
    from kernelyard.tuner.ending import Ending
    from kernelyard.tuner.limits import Limits
    from kernelyard.tuner.tune import tuned

    with told(as_json=as_json), twice():
        samplers.check(sampler)
        refuse_alone(bucket, held_out)
        elsewhere = devices_of(ray, device, bucket) if ray is not None else None
        device, everything = elsewhere.type if elsewhere is not None else check_device(device), registry.current()
        ops = _asked(everything, ops, device, every=every, own_sizes=bool(shapes or kernels), file=is_file(matrix))
        chosen = matrices(everything, ops, device=device, matrix=matrix, shapes=shapes, dtype=dtype, default="performance")
        if any(frozen.held_out for frozen in chosen):
            why = f"matrix {chosen[0].name} is held out: what is tuned on it can't be shown on it."
            raise UsageError(why, do=INSTEAD.format(chosen[0].op))
        if bucket is not None:
            check_shapes([(everything.op(frozen.op), frozen) for frozen in chosen], device, held_out=held_out)
        in_order, by = ordered(everything, chosen, device)
        watching = watcher(quiet=quiet, as_json=as_json)
        if by:
            watching.note(f"most first, by {by}: {', '.join(frozen.op for frozen, _ in in_order)}")
        runs = Runs(watching, as_json=as_json, several=len(in_order) > 1 or elsewhere is not None, save=save)
        for frozen, workloads in in_order:
            asked = Asked(everything.op(frozen.op), everything, identity(device if elsewhere is None else "cpu"), kernels or None, trials,
                          force, storage, frozen, command_line(), Limits(), sampler, Ending(minutes, patience))  # fmt: skip
            with runs.one():
                if elsewhere is not None:
                    tune_there(asked, workloads, elsewhere, watching, runs)
                else:
                    report = tuned(asked, workloads, watching)
                    runs.add(report)
                    if bucket is not None:
                        runs.add_bucket(find_rule(asked, report, bucket, watching.note, held_out=held_out))
        return runs.end()


def _asked(everything: Registry, ops: tuple[str, ...], device: str, *, every: bool, own_sizes: bool, file: bool) -> tuple[str, ...]:
    """The ops that were named, none for those of a file, or with --all those of which a kernel other than the references can run here."""
    if every and (ops or own_sizes or file):
        raise UsageError(
            "--all tunes every op on its frozen matrix: it goes with no OP, --shape, --kernel or --matrix FILE.", do="Leave one out."
        )
    if not every:
        if not ops and not file:
            raise UsageError(
                "no op was named.", exists=f"There are: {', '.join(everything.ops)}.", do="Name an OP, or give --all or a --matrix FILE."
            )
        return ops
    from kernelyard.tuner.plan import tunable

    if not (found := tuple(op.name for op in everything.ops.values() if tunable(everything, op, device))):
        raise UsageError(f"no op has a kernel to tune on {device}.", do="kernelyard list says why not.")
    return found
