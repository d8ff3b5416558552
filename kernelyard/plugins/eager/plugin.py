"""The declaration of this plugin: its kernels and its backend. A probe, which lies beside it, must not import it: listing asks probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import Plugin
from kernelyard.registry.kernel import Kernel, Support
from kernelyard.registry.spec import YES, Answer, Determinism, Workload, no, timed_only

HALF_AND_SINGLE = ("float32", "bfloat16", "float16")
ANYWHERE = Support(devices=("cpu", "cuda"), dtypes=HALF_AND_SINGLE, unit_last_stride=False)


def _broken(why: str) -> Callable[[Workload], Answer]:
    """The refusal of a baseline that breaks the contract on values, which no workload shows."""

    def breaks_the_contract(workload: Workload) -> Answer:
        return timed_only(why)

    return breaks_the_contract


def _plain(op: str, summary: str, why: str, devices: tuple[str, ...] = ("cpu", "cuda"), entry: str = "") -> Kernel:
    support = Support(devices, HALF_AND_SINGLE, unit_last_stride=False, predicates=(_broken(why),))
    entry = f"kernelyard.plugins.eager.{entry or f'{op}:plain'}"
    return Kernel("torch.plain", op, "torch", summary, entry, support, priority=-2, determinism=Determinism.RUN_TO_RUN)


def _eager(op: str, summary: str, entry: str = "") -> Kernel:
    entry = f"kernelyard.plugins.eager.{entry or f'{op}:eager'}"
    return Kernel("torch.eager", op, "torch", summary, entry, ANYWHERE, determinism=Determinism.RUN_TO_RUN)


def _composed(op: str, entry: str, summary: str) -> Kernel:
    """By other registered ops: ahead of the formula, behind whatever is one kernel."""
    entry = f"kernelyard.plugins.eager.{entry}"
    return Kernel("torch.composed", op, "torch", summary, entry, ANYWHERE, priority=1, determinism=Determinism.RUN_TO_RUN)


def _tells_no_logarithm(workload: Workload) -> Answer:
    return no("it returns no lse") if workload.static("return_lse") else YES


def _sdpas() -> Iterator[Kernel]:
    """torch's scaled_dot_product_attention as it chooses, and each of its kernels by name."""
    why = "a query that sees no key is left as torch's kernels leave it, and weights are rounded as they do"
    named = {
        "plain": "as torch chooses", "flash": "FlashAttention-2", "efficient": "xFormers", "cudnn": "cuDNN", "math_kernel": "the formula",
    }  # fmt: skip
    for entry, summary in named.items():
        devices = ("cpu", "cuda") if entry in ("plain", "math_kernel") else ("cuda",)
        dtypes = HALF_AND_SINGLE if entry in ("plain", "math_kernel", "efficient") else HALF_AND_SINGLE[1:]
        support = Support(devices, dtypes, predicates=(_tells_no_logarithm, _broken(why)))
        yield Kernel(
            f"torch.{entry.removesuffix('_kernel')}", "attention", "torch", f"scaled_dot_product_attention, {summary}",
            f"kernelyard.plugins.eager.attention:{entry}", support, priority=-2, determinism=Determinism.RUN_TO_RUN,
        )  # fmt: skip


plugin = Plugin(
    name="eager",
    kernels=(
        _eager("vector_add", "torch.add"),
        _eager("softmax", "torch.softmax, then zeros for rows of all -inf"),
        _eager("softmax_backward", "torch's own kernel for the gradient of torch.softmax, or the formula where that rounds twice"),
        _plain("softmax_backward", "torch's own kernel for the gradient of torch.softmax", "it rounds dy * y before the sum", ("cuda",)),
        _eager("rmsnorm", "torch.nn.functional.rms_norm, or its formula where that rounds otherwise"),
        _eager("rmsnorm_backward", "the formula in float32"),
        _eager("add_rmsnorm", "torch.add, then what serves rmsnorm"),
        _eager("add_rmsnorm_backward", "the formula in float32"),
        _eager("swiglu", "torch.nn.functional.silu in float32 and a product"),
        _eager("swiglu_backward", "the formula in float32"),
        _eager("rope", "tables looked up, a rotation in float32"),
        _eager("matmul", "torch.matmul, and what follows it in float32"),
        _eager("linear_swiglu", "torch.matmul, then swiglu in float32"),
        _eager("attention", "scaled_dot_product_attention where that keeps the contract, else the formula in float32"),
        *_sdpas(),
        _eager("attention_decode", "the formula in float32, masked"),
        _plain("attention_decode", "scaled_dot_product_attention, masked", "a query that sees no key is left as torch's kernels leave it"),
        _plain("matmul", "a linear layer, an activation, a sum", "it rounds after each step"),
        _plain("linear_swiglu", "a linear layer, silu and a product", "it rounds after each step"),
        _eager("rmsnorm_linear", "the norm in float32, torch.matmul, the bias in float32"),
        _eager("rmsnorm_linear_swiglu", "the norm in float32, torch.matmul, swiglu in float32", "rmsnorm_linear:eager_gated"),
        _composed("rmsnorm_linear", "rmsnorm_linear:composed", "rmsnorm, then matmul, by whatever serves them"),
        _composed("rmsnorm_linear_swiglu", "rmsnorm_linear:composed_gated", "rmsnorm, then linear_swiglu, by whatever serves them"),
        _plain("rmsnorm_linear", "a norm and a linear layer", "it rounds the product before the bias"),
        _plain(
            "rmsnorm_linear_swiglu", "a norm, a linear layer, silu and a product", "it rounds after each step",
            entry="rmsnorm_linear:plain_gated",
        ),
        _eager("rope_attention_decode", "rope and attention by the formulas in float32, masked"),
        _composed("rope_attention_decode", "rope_attention_decode:composed", "rope, a write, attention_decode, by whatever serves them"),
        _plain("rope_attention_decode", "as models have it, with scaled_dot_product_attention, masked", "it rounds each product of rope"),
        _plain("softmax", "torch.softmax as it is", "it leaves rows of all -inf as NaN, where the contract has zeros"),
        _plain("rmsnorm_backward", "the kernel of torch.nn.functional.rms_norm's gradient", "it knows no offset", ("cuda",)),
        _plain("add_rmsnorm_backward", "the kernel of torch.nn.functional.rms_norm's gradient, a sum", "it knows no offset", ("cuda",)),
        _plain("swiglu", "torch.nn.functional.silu(a) * b", "it rounds silu(a) before the product"),
        _plain("rope", "as models have it, in x's dtype", "it rounds each product"),
    ),
    backends=(
        Backend(
            name="torch",
            summary="plain torch, op by op",
            devices=("cpu", "cuda"),
            probe="kernelyard.plugins.eager.probe:probe",
            entry="kernelyard.plugins.eager.build:builder",
        ),
    ),
)
