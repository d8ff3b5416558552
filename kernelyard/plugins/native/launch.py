"""A loaded native function as an Executable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelyard.errors import BuildFailed
from kernelyard.plugins.native.bound import bound
from kernelyard.registry.backend import Executable, NativeSource, writing
from kernelyard.registry.op import Op
from kernelyard.registry.spec import Workload


def executable(op: Op, workload: Workload, source: NativeSource, module: Any, resources: Mapping[str, int] | None = None) -> Executable:
    """Calls `source.function` of a loaded module with what `source.arguments` lays out; from C++ where that only puts things in order."""
    try:
        function: Callable[..., None] = module[source.function]
    except (AttributeError, RuntimeError) as error:
        export = f"Add TVM_FFI_DLL_EXPORT_TYPED_FUNC({source.function}, ...);"
        raise BuildFailed(f"{source.files[0]} exports no function '{source.function}'.", do=export) from error
    arguments = source.arguments

    def into(outputs: Any, *args: Any) -> None:
        function(*arguments(outputs, *args))

    return bound(op, workload, function, arguments, writing(op, into, resources))
