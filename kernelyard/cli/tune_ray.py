"""`tune --ray`: the devices of a cluster in the place of this machine's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click

from kernelyard.errors import UsageError

if TYPE_CHECKING:
    from kernelyard.cli.tune_runs import Runs
    from kernelyard.cli.tune_watching import Watcher
    from kernelyard.registry.spec import Workload
    from kernelyard.tuner.answers import Asked
    from kernelyard.tuner.cluster import Devices


def devices_of(ray: str, wanted: str | None, bucket: float | None) -> Devices:
    """Those to tune on, of the cluster to which this command is connected until it ends."""
    if bucket is not None:
        why = "--bucket times its pairs against each other on this machine's device, and --ray tunes on a cluster's."
        raise UsageError(why, do="Leave one out: a machine that has the device makes the rule without --ray.")
    from kernelyard.tuner import cluster

    click.get_current_context().with_resource(cluster.connected(ray))
    return cluster.devices(wanted)


def tune_there(asked: Asked, workloads: Sequence[Workload], among: Devices, watching: Watcher, runs: Runs) -> None:
    """A report for each model of device there, shown as it is finished."""
    from kernelyard.tuner import cluster

    with closing(cluster.tune(asked, workloads, among, watching)) as reports:
        for report in reports:
            runs.add(report)
