"""What follows a matrix product, on a tile of float32 sums: act(sums + bias) * scale + residual."""

# A Triton function is typed by its compiler, not by mypy.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation of that name; see the contract of matmul."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)  # a NaN stays
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x * sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    elif ACTIVATION == "silu":
        x = x * sigmoid(x)
    return x


@triton.jit
def ended(sums, bias_ptr, residual_ptr, n, residual_at, known_n, known, scale, ACTIVATION: tl.constexpr):
    """`sums` (..., N) with what follows. `n` are columns, `residual_at` places in the residual, of which `known` are there."""
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + n, mask=known_n, other=0.0).to(tl.float32)
    sums = activated(sums, ACTIVATION) * scale
    if residual_ptr is not None:
        sums += tl.load(residual_ptr + residual_at, mask=known, other=0.0).to(tl.float32)
    return sums
