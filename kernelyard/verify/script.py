"""A failure as a script of its own: the inputs as explicit tensors, the kernel, and a comparison a reader can follow."""

from __future__ import annotations

import importlib.util
import math
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelyard.registry import registry
from kernelyard.registry.kernel import Kernel
from kernelyard.registry.matrix import point_payload
from kernelyard.registry.spec import Config, Status, contiguous_strides
from kernelyard.verify.inputs import values
from kernelyard.verify.plain import OWN, with_values
from kernelyard.verify.tries import HANG_S, Subject

MOST_WRITTEN = 64
"""Elements of a tensor that are written out; the script asks the op's input maker for longer ones."""

COMPARES = """\
got = table.build(kernel, op.workload_of(args), {config}).call(*args)
want = op.reference(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args))
right = torch.isclose(got.double(), want, rtol={relative!r}, atol={absolute!r}, equal_nan=True)  # {why}
if not right.all():
    print(f"wrong: {{(~right).sum()}} of {{right.numel()}}: got {{got[~right][:4].tolist()}}, want {{want[~right][:4].tolist()}}")
    sys.exit(1)
print("right")
"""
ASKS = """\
found = fault("{op}", "{kernel}", args, {config}{more})  # in a child process: guarded, poisoned, run again
print(f"wrong: {{found}}" if found else "right")
sys.exit(1 if found else 0)
"""


def compares(subject: Subject, reason: str, kernel: Kernel, config: Config) -> str:
    """A script that compares `kernel` with the reference in float64, and nothing else. For ops of one output."""
    tolerance = subject.op.tolerance(_workload(subject))
    why = textwrap.shorten(tolerance.reason, 100, placeholder=" ...")
    tail = COMPARES.format(config=dict(config), relative=tolerance.relative, absolute=tolerance.absolute, why=why)
    table = f'table = registry.current()\nop, kernel = table.op("{subject.op.name}"), table.kernel("{subject.op.name}", "{kernel.name}")\n'
    return _head(subject, reason, kernel) + "from kernelyard.registry import registry\n" + _arguments(subject) + table + tail


def asks(subject: Subject, reason: str, kernel: Kernel, config: Config) -> str:
    """A script that has the checker look, for what no comparison shows: stores astray, inputs changed, crashes, hangs."""
    more = f", limit_s={HANG_S:g}" if subject.status is Status.TIMED_OUT else ""
    more += ', edge="memory"' if subject.where.edge == "memory" else ""
    tail = ASKS.format(op=subject.op.name, kernel=kernel.name, config=dict(config), more=more)
    return _head(subject, reason, kernel) + "from kernelyard.verify.reproduce import fault\n" + _arguments(subject) + tail


def _head(subject: Subject, reason: str, kernel: Kernel) -> str:
    words = textwrap.shorten(f"{subject.op.name} by {kernel.name} is {subject.status}: {reason}", 360, placeholder=" ...")
    told = "\n".join(textwrap.wrap(words.replace("\\", "/").replace('"""', "'"), 120))
    lines = [f'"""{told}', "", 'Exit code 1 while the fault is there, 0 when it is gone."""']
    lines += [f"# The kernel: {source(kernel)}", "import os, sys"]
    point = registry.current().plugin_of(kernel).entry_point
    if point.trusted:  # no installed distribution: named in the environment of the process that found it
        lines += [f'os.environ.setdefault("KERNELYARD_EXTRA_PLUGINS", "{point.value}")', f"sys.path.append({str(_root(point.value))!r})"]
    lines.append("import torch")
    return "\n".join(lines) + "\n"


def source(kernel: Kernel) -> str:
    """The kernel's files and its entry, for people."""
    module, _, function = kernel.entry.partition(":")
    spec = importlib.util.find_spec(module)
    files = [str(kernel.folder / name) for name in kernel.files]
    return f"{', '.join([str(spec.origin if spec else module), *files])} ({function})"


def _root(value: str) -> Path:
    """The folder from which a plugin's module is imported."""
    module = value.partition(":")[0]
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin) if spec and spec.origin else Path.cwd() / "unknown.py"
    return file.parents[module.count(".") + (file.name == "__init__.py")]


def _workload(subject: Subject) -> Any:
    return subject.op.workload(subject.where.point, subject.device)


def arguments(subject: Subject) -> tuple[Any, ...]:
    """The values of the case."""
    where = subject.where
    edge = "random" if where.edge == "memory" else where.edge
    return values(with_values(subject.op, subject.values, where.seed), _workload(subject), torch.device(subject.device), where.seed, edge)


def _arguments(subject: Subject) -> str:
    """Lines that make `args`."""
    lines = ['torch.set_default_device("cuda")'] if subject.device == "cuda" else []
    args, names = arguments(subject), []
    if any(isinstance(value, Tensor) and not _written(subject, a.name, value) for a, value in zip(subject.op.arguments, args, strict=True)):
        lines += _made(subject)
    for i, (argument, value) in enumerate(zip(subject.op.arguments, args, strict=True)):
        if not isinstance(value, Tensor):
            names.append(repr(value))
        elif _written(subject, argument.name, value):
            names.append(argument.name)
            lines.append(f"{argument.name} = {expression(value, subject.values.get(argument.name, OWN))}")
        else:
            names.append(f"made[{i}]")
    return "\n".join([*lines, f"args = ({', '.join(names)},)"]) + "\n"


def _written(subject: Subject, name: str, value: Tensor) -> bool:
    return value.numel() <= MOST_WRITTEN or subject.values.get(name, OWN) != OWN


def _made(subject: Subject) -> list[str]:
    where, device = subject.where, subject.device
    edge = "random" if where.edge == "memory" else where.edge
    point = f"Point({where.point.dims}, {where.point.dtype!r}, {where.point.layout!r}, {where.point.statics})"
    door = "op import Point"
    if where.point.tensors:
        point, door = f"point_from({point_payload(where.point)})", "matrix import point_from"
    return [
        f"from kernelyard.registry import registry; from kernelyard.registry.{door}; from kernelyard.verify.inputs import values",
        f'made = registry.current().op("{subject.op.name}")',
        f'made = values(made, made.workload({point}, "{device}"), torch.device("{device}"), {where.seed}, "{edge}")  # its own inputs',
    ]


def expression(tensor: Tensor, kind: str) -> str:
    """Python that makes the tensor, its strides and its misalignment too."""
    shape = tuple(1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    once = tensor.as_strided(shape, tensor.stride())
    dtype = str(tensor.dtype)
    made = {
        "zeros": f"torch.zeros({shape}, dtype={dtype})",
        "ones": f"torch.ones({shape}, dtype={dtype})",
        "arange": f"torch.arange({once.numel()}).reshape({shape}).to({dtype})",
    }.get(kind) or f"torch.tensor({_literal(once.tolist())}, dtype={dtype}).reshape({shape})"
    offset = tensor.data_ptr() % 16 // tensor.element_size() if tensor.numel() else 0
    if offset or tensor.stride() != contiguous_strides(tuple(tensor.shape)):
        span = 1 + sum((n - 1) * s for n, s in zip(shape, tensor.stride(), strict=True)) if once.numel() else 0
        made = f"torch.zeros({span + offset}, dtype={dtype}).as_strided({shape}, {tensor.stride()}, {offset}).copy_({made})"
    return made if shape == tuple(tensor.shape) else f"{made}.expand({tuple(tensor.shape)})"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)
