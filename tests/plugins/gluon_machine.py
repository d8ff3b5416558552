"""A machine for Gluon's warp-specialised kernels: runs the kernels' own Python source, a thread for each part, in no hurry to do anything.

What is asynchronous happens as late as the rules allow, or at once, by chance: a load when somebody waits, a product when its warpgroup
waits for it, a store when its issuer waits for it. So a barrier that is missing, or in the wrong phase, shows as wrong numbers, and parts
that wait for each other for ever are found at once: `Stuck`. Shared memory begins as NaN; addresses out of bounds raise.
It knows no layouts, and so nothing of registers, of pairs in them or of swizzles.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from kernelyard.registry.backend import Descriptor, TritonLaunch

HERE = threading.local()


class Stuck(Exception):
    """Every part waits."""


class Machine:
    """The threads of one program, and what is on its way."""

    def __init__(self, program: int, programs: int, chance: random.Random) -> None:
        self.program, self.programs, self.chance = program, programs, chance
        self.changed = threading.Condition()
        self.live = 0
        self.waiting: dict[int, Callable[[], bool]] = {}
        self.loads: list[Callable[[], None]] = []
        self.errors: list[BaseException] = []

    def wait(self, ready: Callable[[], bool]) -> None:
        with self.changed:
            self.waiting[threading.get_ident()] = ready
            while not ready():
                if self.loads:
                    self.loads.pop(self.chance.randrange(len(self.loads)))()
                else:
                    self.find_stuck()
                    self.changed.wait()
                self.changed.notify_all()
                if self.errors:
                    raise self.errors[0]
            del self.waiting[threading.get_ident()]

    def find_stuck(self) -> None:
        if len(self.waiting) == self.live and not self.loads and not any(ready() for ready in self.waiting.values()):
            self.errors.append(Stuck("all parts wait"))
            self.changed.notify_all()
            raise self.errors[0]

    def run(self, parts: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        def one(part: Callable[..., None], args: tuple[Any, ...]) -> None:
            HERE.machine, HERE.products, HERE.stores, HERE.fenced = self, [], [], True
            try:
                part(*args)
                assert not HERE.stores, "shared memory ends before a store has read it"
                with self.changed:
                    self.live -= 1
                    self.changed.notify_all()
                    if self.live:
                        self.find_stuck()
            except BaseException as error:
                with self.changed:
                    self.errors.append(error)
                    self.changed.notify_all()

        self.live = len(parts)
        threads = [threading.Thread(target=one, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


class Barrier:
    """Arrivals and bytes that a phase still misses."""

    def __init__(self) -> None:
        self.count = self.missing = self.bytes = self.phase = 0

    def changed(self, arrivals: int, more_bytes: int) -> None:
        self.missing -= arrivals
        self.bytes += more_bytes
        assert self.missing >= 0, "more arrivals than a phase has"
        if self.missing == 0 and self.bytes == 0:
            self.phase, self.missing = self.phase + 1, self.count


def told(barrier: Barrier, arrivals: int, more_bytes: int) -> None:
    with HERE.machine.changed:
        barrier.changed(arrivals, more_bytes)
        HERE.machine.changed.notify_all()


def init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.missing = count


class Shared:
    """Shared memory, or a view of it."""

    def __init__(self, data: Any) -> None:
        self.data = data

    dtype = property(lambda self: self.data.dtype)

    def index(self, i: Any) -> Any:
        return self.data[int(i)] if isinstance(self.data, list) else Shared(self.data[int(i)])

    def slice(self, start: int, length: int, dim: int) -> Shared:
        return Shared(self.data.narrow(dim, start, length))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.data.permute(order))

    def reshape(self, shape: tuple[int, ...]) -> Shared:
        return Shared(self.data.view(shape))

    def store(self, value: torch.Tensor) -> None:
        HERE.fenced = False
        self.data.copy_(value)

    def load(self, layout: Any) -> torch.Tensor:
        return self.data.clone()


def allocate(dtype: torch.dtype, shape: list[int], layout: Any) -> Any:
    if layout == "barrier":
        return Barrier() if len(shape) == 1 else Shared([Barrier() for _ in range(shape[0])])
    return Shared(torch.full(shape, float("nan"), dtype=dtype))


class Described:
    """A descriptor: loads beyond its ends give zeros, stores are dropped."""

    layout = None

    def __init__(self, told: Descriptor) -> None:
        assert told.strides[-1] == 1 and told.tensor.data_ptr() % 16 == 0
        assert all(stride % 8 == 0 and stride > 0 for stride in told.strides[:-1]) and all(size > 0 for size in told.shape)
        self.dtype, self.block = told.tensor.dtype, told.block
        self.view = torch.as_strided(told.tensor, told.shape, told.strides)

    def inside(self, at: list[Any]) -> tuple[torch.Tensor, tuple[slice, ...]]:
        ends = [max(min(int(a) + b, n) - int(a), 0) for a, b, n in zip(at, self.block, self.view.shape, strict=True)]
        return self.view[tuple(slice(int(a), int(a) + e) for a, e in zip(at, ends, strict=True))], tuple(slice(0, e) for e in ends)


def async_load(desc: Described, at: list[Any], barrier: Barrier, to: Shared) -> None:
    at = [int(a) for a in at]
    assert tuple(to.data.shape) == desc.block

    def arrive() -> None:
        source, where = desc.inside(at)
        to.data.zero_()
        to.data[where] = source
        barrier.changed(0, -to.data.numel() * to.data.element_size())

    with HERE.machine.changed:
        if HERE.machine.chance.random() < 0.5:
            HERE.machine.loads.append(arrive)
        else:
            arrive()
        HERE.machine.changed.notify_all()


def async_store(desc: Described, at: list[Any], source: Shared) -> None:
    assert HERE.fenced, "a store that may not see what was written"
    at = [int(a) for a in at]

    def write() -> None:
        to, where = desc.inside(at)
        to.copy_(source.data.view(desc.block)[where])

    HERE.stores.append(write)


def store_wait(pending: int) -> None:
    while len(HERE.stores) > pending:
        HERE.stores.pop(0)()


class Product:
    """One that is on its way: no tensor before it was waited for."""

    def __init__(self, a: Any, b: Shared, acc: Any, use_acc: Any) -> None:
        self.given, self.value = (a, b, acc, bool(use_acc)), None

    def finish(self) -> None:
        a, b, acc, use_acc = self.given
        product = (a.data if isinstance(a, Shared) else a).float() @ b.data.float()
        self.value = product + (acc.value if isinstance(acc, Product) else acc) if use_acc else product


def warpgroup_mma(a: Any, b: Shared, acc: Any, *, use_acc: Any = True, is_async: bool = False) -> Product:
    assert is_async
    HERE.products.append(Product(a, b, acc, use_acc))
    return HERE.products[-1]


def warpgroup_mma_wait(pending: int, deps: tuple[Any, ...]) -> Any:
    while len(HERE.products) > pending:
        HERE.products.pop(0).finish()
    out = tuple(dep.value if isinstance(dep, Product) and dep.value is not None else dep for dep in deps)
    return out[0] if len(out) == 1 else out


class Pointer:
    """Elements of a tensor's memory, counted from its first."""

    def __init__(self, tensor: torch.Tensor, at: Any = 0) -> None:
        self.tensor, self.at = tensor, at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.tensor, self.at + more)

    def places(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        flat = torch.empty(0, dtype=self.tensor.dtype).set_(self.tensor.untyped_storage())
        at = torch.as_tensor(self.at) + self.tensor.storage_offset()
        at, mask = torch.broadcast_tensors(at, torch.as_tensor(mask))
        assert not bool((mask & ((at < 0) | (at >= flat.numel()))).any()), "an address out of bounds"
        return flat, torch.where(mask, at, -1)


def load(pointer: Pointer, mask: Any = True, other: float = 0.0) -> torch.Tensor:
    flat, at = pointer.places(mask)
    return torch.where(at >= 0, flat[at.clamp(min=0)], torch.tensor(other, dtype=flat.dtype))


def store(pointer: Pointer, value: torch.Tensor, mask: Any = True) -> None:
    flat, at = pointer.places(mask)
    flat[at[at >= 0]] = value.expand(at.shape)[at >= 0]


def _either(of_tensors: Callable[..., torch.Tensor], of_numbers: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def chosen(a: Any, b: Any) -> Any:
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return of_tensors(*torch.broadcast_tensors(torch.as_tensor(a), torch.as_tensor(b)))
        return of_numbers(a, b)

    return chosen


GL = SimpleNamespace(
    constexpr=object, float32=torch.float32, int32=torch.int32, int64=torch.int64,
    program_id=lambda axis: HERE.machine.program, num_programs=lambda axis: HERE.machine.programs,
    cdiv=lambda a, b: -(-a // b), minimum=_either(torch.minimum, min), maximum=_either(torch.maximum, max),
    static_range=range, where=torch.where, exp=torch.exp, exp2=torch.exp2, log2=torch.log2, erf=torch.erf,
    max=lambda x, axis: x.amax(axis), min=lambda x, axis: x.amin(axis), sum=lambda x, axis: x.sum(axis),
    zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
    full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
    arange=lambda first, last, layout: torch.arange(first, last, dtype=torch.int32),
    convert_layout=lambda x, layout: x, split=lambda x: x.unbind(-1), load=load, store=store, allocate_shared_memory=allocate,
    NVMMADistributedLayout=lambda **_: None, SliceLayout=lambda *_: None, DotOperandLayout=lambda **_: None,
    warp_specialize=lambda parts, warps, registers: HERE.machine.run(parts),
)  # fmt: skip
BARRIERS = SimpleNamespace(
    MBarrierLayout=lambda: "barrier", init=init,
    wait=lambda barrier, phase, pred=True: HERE.machine.wait(lambda: not pred or barrier.phase & 1 != int(phase)),
    expect=lambda barrier, count: told(barrier, 1, count), arrive=lambda barrier, count: told(barrier, count, 0),
)  # fmt: skip


def run(module: ModuleType, launch: TritonLaunch, outputs: tuple[torch.Tensor, ...], args: tuple[Any, ...], seed: int = 0) -> None:
    """All programs of a launch of a kernel in `module`, one after the other."""
    here = {
        **vars(module), "gl": GL, "mbarrier": BARRIERS, "tma": SimpleNamespace(store_wait=store_wait),
        "async_load": async_load, "async_store": async_store, "warpgroup_mma": warpgroup_mma, "warpgroup_mma_wait": warpgroup_mma_wait,
        "fence_async_shared": lambda: setattr(HERE, "fenced", True),
    }  # fmt: skip
    for name, value in vars(module).items():
        if hasattr(value, "arg_names"):
            here[name] = FunctionType(value.fn.__code__, here)
    here |= {"paired": lambda values, dtype: values.to(dtype), "unpaired": lambda words, dtype, layout: words}
    values = iter(launch.arguments(outputs, *args))
    call = {name: launch.constants[name] if name in launch.constants else _given(next(values)) for name in launch.function.arg_names}
    for program in range(launch.grid[0]):
        HERE.machine = Machine(program, launch.grid[0], random.Random(seed + program))
        here[launch.function.__name__](**call)


def _given(value: Any) -> Any:
    if isinstance(value, Descriptor):
        return Described(value)
    return Pointer(value) if isinstance(value, torch.Tensor) else value
