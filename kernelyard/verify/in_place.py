"""A run whose results overwrite its arguments, where the contract lets them: what a kernel reads after it wrote there is gone."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from kernelyard.registry.backend import Executable
from kernelyard.registry.op import Op
from kernelyard.verify.inputs import Inputs
from kernelyard.verify.launch import Enqueue, Outputs


def enqueue(op: Op, executable: Executable, inputs: Inputs) -> Enqueue | None:
    """Launches into the arguments that may be overwritten; None where there are none, or the kernel can't write into given tensors."""
    into = executable.into
    outputs = op.empty(*inputs.args)
    places = _places(op, inputs, outputs)
    if into is None or not places:
        return None

    def run(these: Inputs) -> Outputs:
        given = dict(zip((argument.name for argument in op.arguments), these.args, strict=True))
        targets = tuple(given[places[i]] if i in places else output for i, output in enumerate(outputs))
        into(targets, *these.args)
        return targets, (), ()

    return run


def _places(op: Op, inputs: Inputs, outputs: tuple[Tensor, ...]) -> Mapping[int, str]:
    """Output -> the argument it overwrites, each argument once: the first declared one that has the output's form."""
    given = dict(zip((argument.name for argument in op.arguments), inputs.args, strict=True))
    places: dict[int, str] = {}
    for output, name in op.in_place:
        if output not in places and name not in places.values() and _same_form(given[name], outputs[output]):
            places[output] = name
    return places


def _same_form(argument: Tensor | None, output: Tensor) -> bool:
    return argument is not None and (argument.shape, argument.dtype, argument.stride()) == (output.shape, output.dtype, output.stride())
