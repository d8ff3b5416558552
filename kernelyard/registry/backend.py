"""A backend: how kernels of one kind are built and launched, and whether this machine can do it.

What `Kernel.entry(workload, config)` returns is the backend's business. The built-in ones take:

- ``torch``, ``compile``: a function of the op's arguments that returns the outputs;
- ``cpp``, ``cuda``: a `NativeSource`;
- ``triton``: a `TritonLaunch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kernelyard.registry.lazy import load
from kernelyard.registry.probing import probed
from kernelyard.registry.spec import Answer, Config, TensorSpec, Workload, require

if TYPE_CHECKING:
    from kernelyard.registry.kernel import Kernel
    from kernelyard.registry.op import Op

Purpose = Literal["run", "check"]
"""'run': serve calls and be timed. 'check': only be verified (Triton's interpreter on a CPU)."""


@dataclass(frozen=True)
class Backend:
    """`probe` and `entry` are 'module:attribute', so that listing imports neither compiler nor torch.

    probe(device_type, purpose) -> Answer     can this machine do it? cheap, no torch import, no build
    entry                                     an object that is a `Builder`
    slow_builds                               each workload costs seconds to build: a check takes a spread of the matrix
    """

    name: str
    summary: str
    devices: tuple[str, ...]
    probe: str
    entry: str
    slow_builds: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        require(self.name.isidentifier(), f"backend name '{self.name}' is not an identifier")
        for name in ("probe", "entry"):
            require(":" in getattr(self, name), f"backend '{self.name}': {name} must be 'package.module:attribute'")

    def available(self, device: str, purpose: Purpose = "run") -> Answer:
        """Whether kernels of this backend can run (or be checked) on this machine's device type. A probe that raises is a no."""
        return probed(self.probe, device, purpose)

    def builder(self) -> Builder:
        """The object that builds; imports what the backend needs."""
        return load(self.entry)  # type: ignore[no-any-return]


class Builder(Protocol):
    """Turns a kernel, a workload and a config into something callable.

    It may also have `trace` (a kernel's memory accesses, by interpreting it) and `compile_for` (registers and shared memory on
    a GPU that is not here), for `kernelyard traffic`: see `kernelyard.registry.tracing`.
    """

    def versions(self) -> Mapping[str, str]:
        """Versions that a stored choice depends on: {'torch': '2.13.0', 'g++': '12.2.0'}."""

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        """Compile or load; raises errors.BuildFailed with the compiler's words."""


@dataclass(frozen=True)
class Executable:
    """A built kernel, bound to one workload and config.

    call(*args) -> outputs          the op's arguments in schema order, all of them; outputs newly allocated
    into(outputs, *args) -> None    the same into a tuple of given tensors; None where the kernel can't
    resources                       registers, spills, shared_bytes, ... as far as the compiler tells
    wait(result) -> None            waits for what `call` returned, where torch's stream doesn't order it (JAX: block_until_ready)
    """

    call: Callable[..., Any]
    into: Callable[..., None] | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    wait: Callable[[Any], None] | None = None


def writing(op: Op, into: Callable[..., None], resources: Mapping[str, int] | None = None) -> Executable:
    """An Executable of a kernel that writes into given tensors: `call` allocates by the op's contract."""
    empty = op.empty
    if op.returns == 1:

        def call(*args: Any) -> Any:
            outputs = empty(*args)
            into(outputs, *args)
            return outputs[0]
    else:

        def call(*args: Any) -> Any:
            outputs = empty(*args)
            into(outputs, *args)
            return outputs

    return Executable(call, into, resources or {})


def aligned(into: Callable[..., None]) -> Callable[..., None]:
    """The same, by way of tensors of our own where an output does not start at a multiple of 16 bytes, which many libraries refuse."""

    def guarded(outputs: tuple[Any, ...], *args: Any) -> None:
        for output in outputs:
            if output.data_ptr() % 16:
                break
        else:
            into(outputs, *args)
            return
        own = tuple(output.new_empty(output.shape) for output in outputs)
        into(own, *args)
        for output, result in zip(outputs, own, strict=True):
            output.copy_(result)

    return guarded


@dataclass(frozen=True)
class NativeSource:
    """C++ or CUDA C++ for one kernel, as its entry returns it.

    `files` lie in the kernel's folder; the first holds an exported function
    (`TVM_FFI_DLL_EXPORT_TYPED_FUNC`) called `function`. `defines` become -D flags, part of the build's
    content hash. `arguments(outputs, *args)` lays out the call: tensors and plain numbers in the function's order.
    """

    files: tuple[str, ...]
    function: str
    arguments: Callable[..., tuple[Any, ...]]
    defines: Mapping[str, str | int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor as the tensor memory accelerator sees it: one of the run-time arguments that a `TritonLaunch` lays out.

    Copies are of `block` elements; what lies outside of `shape` reads as zeros and is not written. Strides are in elements, the last is 1,
    the others are multiples of 16 bytes, as is the address.
    """

    tensor: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a Triton function, or the first of several on one stream, as a kernel's entry returns it.

    `arguments(outputs, *args)` gives the run-time arguments in order; `constants` the tl.constexpr ones by name.
    `grid` is fixed by the workload.

    workspace   tensors that one launch leaves for the next, shapes and dtypes: allocated at each call, unfilled, and handed to `arguments`
                behind the outputs. Two calls at once, on two streams or in a graph, share nothing.
    counters    how many int32 zeros follow the workspace, for programs to count each other by. The launch leaves them as zeros. They are
                its stream's, or in a graph the very call's, so that two at once never count together
    then        the launch that follows; it has no workspace of its own
    pdl         programmatic dependent launch: may start before the one ahead of it has ended. Its function has to call gdc_wait
                in every program before it touches memory
    """

    function: Any
    grid: tuple[int, int, int]
    arguments: Callable[..., tuple[Any, ...]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    workspace: tuple[TensorSpec, ...] = ()
    counters: int = 0
    then: TritonLaunch | None = None
    pdl: bool = False

    def __post_init__(self) -> None:
        own = self.then is not None and bool(self.then.scratch)
        require(not own, "a workspace belongs to the first launch: later ones are handed the same")

    @property
    def scratch(self) -> tuple[TensorSpec, ...]:
        """All tensors that are handed over behind the outputs."""
        return (*self.workspace, TensorSpec((self.counters,), "int32")) if self.counters else self.workspace

    def all(self) -> tuple[TritonLaunch, ...]:
        """This launch and those that follow, in order; without the ones of no programs."""
        rest = self.then.all() if self.then else ()
        return rest if 0 in self.grid else (self, *rest)
