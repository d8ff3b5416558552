"""The declaration of this plugin: its kernels and its backend. A probe, which lies beside it, must not import it: listing asks probes."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import YES, Answer, Determinism, Workload, timed_only

ANYWHERE = Support(("cpu", "cuda"), ("float32", "bfloat16", "float16"), unit_last_stride=False)
FUNCTIONS = {
    "vector_add": "kernelyard.plugins.eager.vector_add:traceable",
    "softmax": "kernelyard.plugins.eager.softmax:traceable",
    "softmax_backward": "kernelyard.plugins.eager.softmax_backward:traceable",
    "rmsnorm": "kernelyard.plugins.eager.rmsnorm:eager",
    "rmsnorm_backward": "kernelyard.plugins.eager.rmsnorm_backward:eager",
    "add_rmsnorm": "kernelyard.plugins.eager.add_rmsnorm:eager",
    "add_rmsnorm_backward": "kernelyard.plugins.eager.add_rmsnorm_backward:eager",
    "swiglu": "kernelyard.plugins.eager.swiglu:eager",
    "swiglu_backward": "kernelyard.plugins.eager.swiglu_backward:eager",
    "rope": "kernelyard.plugins.eager.rope:traceable",
    "matmul": "kernelyard.plugins.eager.matmul:traceable",
    "linear_swiglu": "kernelyard.plugins.eager.linear_swiglu:plain",
    "attention": "kernelyard.plugins.eager.attention:traceable",
    "attention_decode": "kernelyard.plugins.eager.attention_decode:eager",
    "rope_attention_decode": "kernelyard.plugins.eager.rope_attention_decode:eager",
    "rmsnorm_linear": "kernelyard.plugins.eager.rmsnorm_linear:plain",
    "rmsnorm_linear_swiglu": "kernelyard.plugins.eager.rmsnorm_linear:plain_gated",
}
PRODUCTS = ("matmul", "linear_swiglu", "rmsnorm_linear", "rmsnorm_linear_swiglu")
SUMMARIES = {"compile.default": "torch.compile", "compile.max_autotune": "torch.compile, mode max-autotune without CUDA graphs"}


def _of_a_product(workload: Workload) -> Answer:
    """Inductor may leave the product to a library, which rounds it and asks torch's switch for TF32."""
    if workload.dtype == "float32":
        return timed_only("torch's switch for TF32 decides about its products") if workload.device == "cuda" else YES
    ended = workload.op == "matmul" and (workload.static("activation") != "none" or workload.has("residual"))
    followed = ended or workload.op.endswith("linear_swiglu") or workload.has("bias")
    return timed_only("it may round the product before what follows it") if followed else YES


def _support(op: str) -> Support:
    return replace(ANYWHERE, predicates=(_of_a_product,)) if op in PRODUCTS else ANYWHERE


plugin = Plugin(
    name="compiled",
    kernels=tuple(
        Kernel(name, op, "compile", summary, entry, _support(op), priority=-1, determinism=Determinism.RUN_TO_RUN)
        for op, entry in FUNCTIONS.items()
        for name, summary in SUMMARIES.items()
    ),
    backends=(
        Backend(
            name="compile",
            summary="torch.compile (Inductor)",
            devices=("cpu", "cuda"),
            probe="kernelyard.plugins.compiled.probe:probe",
            entry="kernelyard.plugins.compiled.build:builder",
            slow_builds=True,
        ),
    ),
)
