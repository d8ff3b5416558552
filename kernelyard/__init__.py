"""kernelyard: which kernels can run here, are they right, which is fastest, and what does that do to a model.

import kernelyard
y = kernelyard.ops.rmsnorm(x, w, eps=1e-6)              # the tuned kernel, or the best that can run
with kernelyard.use(rmsnorm="torch.eager"): ...         # pin one
print(kernelyard.explain("rmsnorm", x, w))              # why that one
print(kernelyard.profile_ops(model, tokens))            # which operations its time goes to
with kernelyard.capture("my-model"): model(tokens)      # the workloads it asks for, as a matrix to tune
print(kernelyard.selections())                          # which kernel served which of them, and why
with kernelyard.swap(model): model.generate(tokens)     # registered ops inside a Hugging Face Llama, Qwen2 or Mistral
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelyard.registry import choices, misses, proofs, rules

if TYPE_CHECKING:
    from kernelyard import ops as ops
    from kernelyard.decoder.swap import swap as swap
    from kernelyard.decoder.swap import unswap as unswap
    from kernelyard.measure.op_shares import profile_ops as profile_ops
    from kernelyard.registry.capture import capture as capture
    from kernelyard.registry.dispatch import Selection as Selection
    from kernelyard.registry.pins import use as use
    from kernelyard.registry.selections import selections as selections

__version__ = "0.1.0"
__all__ = ["capture", "explain", "ops", "profile_ops", "selections", "swap", "unswap", "use"]

choices.connect("kernelyard.store.choices:find")
rules.connect("kernelyard.store.rules:find")
proofs.connect("kernelyard.store.proofs:find")
misses.connect("kernelyard.store.misses:keep")


def explain(op: str, *args: Any, **kwargs: Any) -> Selection:
    """What a call `kernelyard.ops.<op>(*args, **kwargs)` would run, why, and why not the others."""
    from kernelyard.registry import dispatch, registry

    contract = registry.current().op(op)
    bound = contract.bind(args, kwargs)
    contract.check(bound)
    return dispatch.select(contract, contract.workload_of(bound))


def __getattr__(name: str) -> Any:
    if name == "ops":
        import importlib

        return importlib.import_module("kernelyard.ops")
    if name == "use":
        from kernelyard.registry.pins import use

        return use
    if name == "capture":
        from kernelyard.registry.capture import capture

        return capture
    if name == "selections":
        from kernelyard.registry.selections import selections

        return selections
    if name == "profile_ops":
        from kernelyard.measure.op_shares import profile_ops

        return profile_ops
    if name in ("swap", "unswap"):
        from kernelyard.decoder import swap

        return getattr(swap, name)
    raise AttributeError(f"kernelyard has no '{name}'. Public: {', '.join(__all__)}.")
