"""The contracts: one op a file, each with its meaning, inputs, tolerances, costs and frozen shapes.

A contract knows no kernel and no backend. `plugin` declares them all through the same door as any other plugin.
"""

from __future__ import annotations

from kernelyard.contracts.add_rmsnorm import ADD_RMSNORM
from kernelyard.contracts.add_rmsnorm_backward import ADD_RMSNORM_BACKWARD
from kernelyard.contracts.attention import ATTENTION
from kernelyard.contracts.attention_decode import ATTENTION_DECODE
from kernelyard.contracts.linear_swiglu import LINEAR_SWIGLU
from kernelyard.contracts.matmul import MATMUL
from kernelyard.contracts.rmsnorm import RMSNORM
from kernelyard.contracts.rmsnorm_backward import RMSNORM_BACKWARD
from kernelyard.contracts.rmsnorm_linear import RMSNORM_LINEAR
from kernelyard.contracts.rmsnorm_linear_swiglu import RMSNORM_LINEAR_SWIGLU
from kernelyard.contracts.rope import ROPE
from kernelyard.contracts.rope_attention_decode import ROPE_ATTENTION_DECODE
from kernelyard.contracts.softmax import SOFTMAX
from kernelyard.contracts.softmax_backward import SOFTMAX_BACKWARD
from kernelyard.contracts.swiglu import SWIGLU
from kernelyard.contracts.swiglu_backward import SWIGLU_BACKWARD
from kernelyard.contracts.vector_add import VECTOR_ADD
from kernelyard.registry.discovery import Plugin

plugin = Plugin(
    name="contracts",
    ops=(
        VECTOR_ADD,
        SOFTMAX,
        SOFTMAX_BACKWARD,
        RMSNORM,
        RMSNORM_BACKWARD,
        ADD_RMSNORM,
        ADD_RMSNORM_BACKWARD,
        SWIGLU,
        SWIGLU_BACKWARD,
        ROPE,
        MATMUL,
        LINEAR_SWIGLU,
        ATTENTION,
        ATTENTION_DECODE,
        RMSNORM_LINEAR,
        RMSNORM_LINEAR_SWIGLU,
        ROPE_ATTENTION_DECODE,
    ),
)
