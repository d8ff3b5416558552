"""What `traffic` works on: a kernel that can be traced, a shape that takes seconds, the config that was typed."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.cli.output import config_text, say
from kernelyard.cli.workloads import matrices
from kernelyard.errors import Unsupported, UsageError
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.op import Op, Point
from kernelyard.registry.registry import Registry
from kernelyard.registry.spec import Config, Workload
from kernelyard.registry.tracing import Tracer

SOON_BYTES = 8 << 20
"""Of a default shape: two cores interpret it within seconds."""


def require_tracer(everything: Registry, kernel: Kernel) -> None:
    """Raises Unsupported, with what can be traced instead."""
    backend = everything.backend(kernel.backend)
    if answer := backend.available("cpu", "check"):
        if isinstance(backend.builder(), Tracer):
            return
        reason = f"the backend '{backend.name}' can't tell a kernel's memory accesses"
    else:
        reason = answer.reason
    able = [name for name in everything.backends if name != backend.name and _traces(everything, name)]
    others = [other.name for other in everything.kernels(kernel.op) if other.backend in able]
    exists = f"Backends that can: {', '.join(able) or 'none'}; kernels of {kernel.op}: {', '.join(others) or 'none'}."
    raise Unsupported(f"{kernel.name} can't be traced: {reason}.", exists=exists)


def _traces(everything: Registry, name: str) -> bool:
    backend = everything.backend(name)
    try:
        return bool(backend.available("cpu", "check")) and isinstance(backend.builder(), Tracer)
    except Exception:  # a stranger's builder that can't be imported traces nothing
        return False


def traced_point(everything: Registry, op: Op, kernel: Kernel, device: str, shape: str | None, dtype: str | None) -> Point:
    """What was typed, or the largest performance point that is traced within seconds, its longest size halved where none is."""
    shapes = () if shape is None else (shape,)
    (matrix,) = matrices(everything, [op.name], device=device, matrix=None, shapes=shapes, dtype=dtype, default="performance")
    fitting = [point for point in matrix.points if kernel.support.fits(op.workload(point, device))]
    if not fitting:
        answer = kernel.support.fits(op.workload(matrix.points[0], device))
        raise Unsupported(f"{kernel.name} does not support {op.workload(matrix.points[0], device).label()}: {answer.reason}.")
    if shape is not None:
        return fitting[0]
    sizes = {point: op.cost(op.workload(point, device)).bytes for point in fitting}
    soon = [point for point in fitting if sizes[point] <= SOON_BYTES]
    point = max(soon, key=sizes.__getitem__) if soon else min(fitting, key=sizes.__getitem__)
    while op.cost(op.workload(point, device)).bytes > SOON_BYTES and max(point.dims) > 1:
        longest = point.dims.index(max(point.dims))
        point = replace(point, dims=tuple(size // 2 if i == longest else size for i, size in enumerate(point.dims)))
    say(f"{op.workload(point, device).label()}: from {matrix.name}, as much as is traced within seconds; --shape for another")
    return point


def typed_config(kernel: Kernel, workload: Workload, words: tuple[str, ...]) -> Config:
    """The author's default with what was typed put in; raises UsageError for what the space does not have or allow."""
    config = dict(kernel.space.default_for(workload))
    values = {parameter.name: {str(value): value for value in parameter.values} for parameter in kernel.space.parameters}
    for word in words:
        name, _, text = word.partition("=")
        if name not in values or text not in values[name]:
            known = "; ".join(f"{known}={', '.join(texts)}" for known, texts in values.items()) or "nothing to choose"
            raise UsageError(f"--config {word} is not of {kernel.name}'s space.", exists=f"It has {known}.")
        config[name] = values[name][text]
    if words and not (answer := kernel.space.allows(config, workload)):
        raise UsageError(f"{kernel.name} does not allow {config_text(config)} on {workload.label()}: {answer.reason}.")
    return config
