"""Where the time of a module's call goes: its torch operations by share, and which of them kernelyard has an op for.

By torch.profiler: device time on a GPU, else the CPU's own time of each operation (what it calls is counted there, not
twice). The profiler makes every call of an operation longer, so shares are what to read; `call_us` is the whole call without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from kernelyard.errors import UsageError
from kernelyard.registry import registry
from kernelyard.registry.lazy import torch

if TYPE_CHECKING:
    from torch.nn import Module

WARM_UP, RUNS = 2, 3
SHOWN = 0.01
"""Operations of a smaller share are one line of the table."""

OPS: Mapping[str, tuple[str, ...]] = {
    "vector_add": ("add", "add_"),
    "softmax": ("softmax", "_softmax"),
    "rmsnorm": ("rms_norm", "_fused_rms_norm"),
    "matmul": ("mm", "addmm", "bmm", "matmul", "linear"),
    "attention": (
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
        "_flash_attention_forward", "_efficient_attention_forward",
    ),
}  # fmt: skip
"""torch's names (aten::...) of what an op of kernelyard does; only ops that are registered are named."""


@dataclass(frozen=True)
class OpShare:
    """One torch operation: calls in one call of the module, its own time in all of them, its share, and kernelyard's op for it, or ''."""

    name: str
    calls: int
    time_us: float
    share: float
    op: str


@dataclass(frozen=True)
class OpShares:
    """Operations by falling share. `clock` is 'device' or 'cpu'.

    `served` are kernelyard's ops by the share that torch's operations of that name take with all that they call.
    `call_us` is the median time of the whole call, unprofiled; `timed_us` the sum over operations and `profiled_us` the whole
    call under the profiler, both per call; `untimed` is the share of that in no operation: Python, an idle GPU, and kernels
    that are launched past torch's operators, as kernelyard's own are in an eager call.
    """

    rows: tuple[OpShare, ...]
    served: Mapping[str, float]
    clock: str
    call_us: float
    timed_us: float
    profiled_us: float

    @property
    def untimed(self) -> float:
        """The share of the profiled call that no operation accounts for; 0 where operations overlap."""
        return max(1 - self.timed_us / self.profiled_us, 0.0) if self.profiled_us else 0.0

    def __str__(self) -> str:
        shown = [row for row in self.rows if row.share >= SHOWN]
        small = [row for row in self.rows if row.share < SHOWN]
        if small:
            rest = f"{len(small)} smaller ones"
            shown.append(OpShare(rest, sum(r.calls for r in small), sum(r.time_us for r in small), sum(r.share for r in small), ""))
        width = max((len(row.name) for row in shown), default=0)
        head = f"{'share':>6}  {'time':>10}  {'calls':>5}  {'operation':<{width}}  kernelyard"
        lines = [f"{r.share:>6.1%}  {r.time_us:>7.1f} us  {r.calls:>5}  {r.name:<{width}}  {r.op or '-'}" for r in shown]
        return "\n".join([head, *lines, self._served_words(), self._untimed_words()])

    def _served_words(self) -> str:
        shares = ", ".join(f"{op} {share:.1%}" for op, share in self.served.items())
        return f"with all that they call, kernelyard has an op for: {shares or 'none of these'}"

    def _untimed_words(self) -> str:
        where = "Python, and kernels launched past torch's operators" + (", or an idle GPU" if self.clock == "device" else "")
        return f"whole call {self.call_us:.1f} us; profiled {self.profiled_us:.1f} us, of which {self.untimed:.1%} in no operation: {where}"


def profile_ops(module: Module, *args: Any, **kwargs: Any) -> OpShares:
    """The dominant torch operations of `module(*args, **kwargs)`, without gradients, where the module's tensors are.

    The module's buffers and torch's random numbers are afterwards as they were, though it is called several times. Works for
    any callable of tensors. Raises UsageError for what can't be called; errors of the call itself go on unchanged.
    """
    if not callable(module):
        raise UsageError(f"profile_ops needs a module to call, not {type(module).__name__}.", do="kernelyard.profile_ops(model, tokens)")
    cuda = _device_type(module, args, kwargs) == "cuda"
    wait = torch.cuda.synchronize if cuda else _nothing

    def call() -> float:
        start = time.perf_counter_ns()
        module(*args, **kwargs)
        wait()
        return (time.perf_counter_ns() - start) / 1e3

    with torch.no_grad(), _unchanged(module):
        for _ in range(WARM_UP):
            call()
        whole = median(call() for _ in range(RUNS))
        with torch.profiler.profile(activities=_activities(cuda)) as profiler:
            profiled = sum(call() for _ in range(RUNS)) / RUNS
    rows = _rows(profiler.key_averages(), "self_device_time_total" if cuda else "self_cpu_time_total")
    timed = sum(row.time_us for row in rows)
    served = _served(profiler.events(), "device_time_total" if cuda else "cpu_time_total", RUNS * timed)
    return OpShares(rows, served, "device" if cuda else "cpu", whole, timed, profiled)


@contextmanager
def _unchanged(module: Callable[..., Any]) -> Iterator[None]:
    """Puts buffers (the running means of a batch norm) and the states of torch's generators back."""
    buffers = list(module.buffers()) if isinstance(module, torch.nn.Module) else []
    before = [buffer.clone() for buffer in buffers]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)


def _rows(averages: Any, field: str) -> tuple[OpShare, ...]:
    """Operations alone: the profiler also lists the driver's own calls and, on a GPU, each kernel a second time under its own name."""
    spaces = {schema.name.split("::")[0] for schema in torch._C._jit_get_all_schemas()}
    timed = [(one.key, one.count // RUNS, getattr(one, field) / RUNS) for one in averages if one.key.split("::")[0] in spaces]
    timed = [(name, calls, us) for name, calls, us in timed if us > 0]
    total = sum(us for _, _, us in timed)
    rows = [OpShare(name, calls, us, us / total, _op(name)) for name, calls, us in timed]
    return tuple(sorted(rows, key=lambda row: (-row.time_us, row.name)))


def _served(events: Any, field: str, total_us: float) -> dict[str, float]:
    """The time of each op's outermost calls, what they call included: a softmax inside an attention is the attention's."""
    shares: dict[str, float] = {}
    for event in events:
        op = _op(event.name)
        if op and not any(_op(outer.name) for outer in _callers(event)):
            shares[op] = shares.get(op, 0.0) + getattr(event, field) / total_us
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _callers(event: Any) -> Iterator[Any]:
    while (event := event.cpu_parent) is not None:
        yield event


def _op(name: str) -> str:
    """kernelyard's op for a torch operation, where one is registered."""
    space, _, rest = name.partition("::")
    ops = registry.current().ops
    if space == "kernelyard":
        return rest if rest in ops else ""
    return next((op for op, names in OPS.items() if space == "aten" and rest in names and op in ops), "")


def _activities(cuda: bool) -> list[Any]:
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU, kinds.CUDA] if cuda else [kinds.CPU]


def _device_type(module: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Where the first tensor lies: of the module's own, else of the arguments."""
    own = [*module.parameters(), *module.buffers()] if isinstance(module, torch.nn.Module) else []
    tensors = [value for value in (*own, *args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return tensors[0].device.type if tensors else "cpu"


def _nothing() -> None:
    return None
