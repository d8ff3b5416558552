"""An op, kernels and a backend to select from. Every kernel fills its output with a number of its own, so that a test sees which ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelyard.errors import BuildFailed, InvalidInput
from kernelyard.registry.backend import Backend, Executable, Purpose
from kernelyard.registry.discovery import EntryPoint, Loaded, Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.lazy import load, torch
from kernelyard.registry.op import Op, Point
from kernelyard.registry.registry import Registry, assemble
from kernelyard.registry.spec import YES, Answer, Choice, Config, Cost, DeviceIdentity, TensorSpec, Tolerance, Workload, no

HERE = "tests.registry.fakes"
builds: list[tuple[str, str, dict[str, Any]]] = []
"""(kernel, workload key, config) of every build since the list was cleared."""
versions = {"fake": "1"}


def validate(x: Any, factor: float) -> None:
    if x.dim() < 1:
        raise InvalidInput("scale: x has no dimensions.")


def make_op(name: str = "scale", **changes: Any) -> Op:
    fields: dict[str, Any] = {
        "name": name,
        "summary": "multiplies",
        "schema": "(Tensor x, float factor=2.0) -> Tensor",
        "dims": ("rows", "cols"),
        "dtypes": ("float32", "float16", "bfloat16"),
        "tensors": lambda sizes, dtype, statics: {"x": TensorSpec((sizes["rows"], sizes["cols"]), dtype)},
        "sizes": lambda specs: {"rows": specs["x"].shape[0], "cols": specs["x"].shape[-1]},
        "validate": validate,
        "empty": lambda x, factor: (torch.empty(x.shape, dtype=x.dtype, device=x.device),),
        "reference": lambda x, factor: x * factor,
        "inputs": lambda workload, generator: (torch.randn(workload["x"].shape, generator=generator), 2.0),
        "tolerance": lambda workload: Tolerance(1e-6, 0.0, "one product"),
        "cost": lambda workload: Cost(2 * workload["x"].nbytes, workload["x"].numel),
        "matrices": {"correctness": (Point((0, 1), "float32"),), "performance/cpu": (Point((16, 64), "float32"),)},
        "collapse": 2,
        "fallback": "fake.last",
    }
    return Op(**{**fields, **changes})


SCALE = make_op()
ANY = Support(devices=("cpu",), dtypes=("float32", "float16", "bfloat16"), unit_last_stride=False)


def make_kernel(name: str, fills: int | str = 0, **changes: Any) -> Kernel:
    """A kernel whose entry is `fill_<number>`, or the named function of this module."""
    entry = f"{HERE}:fill_{fills}" if isinstance(fills, int) else f"{HERE}:{fills}"
    fields: dict[str, Any] = {"op": "scale", "backend": name.partition(".")[0], "summary": "fills", "entry": entry, "support": ANY}
    return Kernel(name=name, **{**fields, **changes})


def _filling(number: int) -> Callable[[Workload, Config], Callable[..., Any]]:
    def entry(workload: Workload, config: Config) -> Callable[..., Any]:
        return lambda x, factor: torch.full(x.shape, float(number), dtype=x.dtype, device=x.device)

    return entry


fill_0, fill_1, fill_2, fill_3 = map(_filling, range(4))


def fill_two(workload: Workload, config: Config) -> Callable[..., Any]:
    return lambda x, factor: (torch.full(x.shape, 1.0), torch.full(x.shape, 2.0))


def told_config(workload: Workload, config: Config) -> Callable[..., Any]:
    """Fills with the config's own 'value'."""
    return lambda x, factor: torch.full(x.shape, float(config["value"]), dtype=x.dtype)


def told_dtype(workload: Workload, config: Config) -> Callable[..., Any]:
    """Fails unless it meets the dtype that it was built for."""

    def run(x: Any, factor: float) -> Any:
        assert str(x.dtype) == f"torch.{workload.dtype}"
        return x * factor

    return run


def broken(workload: Workload, config: Config) -> Callable[..., Any]:
    raise BuildFailed("the compiler said no", log="error: expected ';'")


def raising(workload: Workload, config: Config) -> Callable[..., Any]:
    raise KeyError("value")


def honest(workload: Workload, config: Config) -> Callable[..., Any]:
    return lambda x, factor: x * factor


def by_matmul(workload: Workload, config: Config) -> Callable[..., Any]:
    """What autocast would round to half precision."""
    return lambda x, factor: torch.mm(x, factor * torch.eye(x.shape[-1]))


def by_address(workload: Workload, config: Config) -> Callable[..., Any]:
    """Reads memory as a native kernel does: fails where what lies there are not the values."""

    def run(x: Any, factor: float) -> Any:
        assert type(x) is torch.Tensor and not x.is_neg() and x.data_ptr()
        return x * factor

    return run


class Builder:
    def versions(self) -> Mapping[str, str]:
        return versions

    def build(self, op: Op, kernel: Kernel, workload: Workload, config: Config) -> Executable:
        builds.append((kernel.name, workload.key(), dict(config)))
        return Executable(load(kernel.entry)(workload, config))


builder = Builder()


def probe(device: str, purpose: Purpose) -> Answer:
    return YES


def absent(device: str, purpose: Purpose) -> Answer:
    return no("no such compiler: install one")


def failing(device: str, purpose: Purpose) -> Answer:
    raise OSError("libfake.so is not here")


def nonsense(device: str, purpose: Purpose) -> Any:
    return "yes"


def make_backend(name: str = "fake", probe: str = "probe") -> Backend:
    return Backend(name, "fills", ("cpu",), f"{HERE}:{probe}", f"{HERE}:builder")


def loaded(plugin: Plugin, distribution: str = "fakes") -> Loaded:
    return Loaded(plugin, EntryPoint(plugin.name, "fakes:plugin", distribution, "1.0"), 0.0)


def make_registry(*kernels: Kernel, op: Op = SCALE, backends: tuple[Backend, ...] = (make_backend(),)) -> Registry:
    return assemble([loaded(Plugin("fakes", ops=(op,), kernels=kernels, backends=backends))])


def make_choice(kernel: Kernel, workload: Workload, device: DeviceIdentity, /, *, op: Op = SCALE, **changes: Any) -> Choice:
    """A choice that holds now, unless changed."""
    fields: dict[str, Any] = {
        "op": op.name,
        "workload_key": workload.key(),
        "device_key": device.key(),
        "mode": "device",
        "kernel": kernel.name,
        "config": kernel.space.default_for(workload),
        "contract_hash": op.contract_hash(),
        "source_hash": kernel.source_hash(),
        "space_hash": kernel.space.hash(),
        "versions": dict(versions),
        "run_id": "run1",
    }
    return Choice(**{**fields, **changes})
