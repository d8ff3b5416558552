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
def gelu(x):
    """x times the standard normal distribution up to x, by 7.1.26 of Abramowitz and Stegun (1964): within 1.5e-7 of it, without branches.

    A tail is told by itself and not as 1 - erf, so that small results keep their digits.
    """
    t = 1.0 / (1.0 + 0.23164188 * tl.abs(x))
    terms = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = terms * tl.exp(-0.5 * x * x)
    return x * tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation of that name; see the contract of matmul."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)  # a NaN stays
    elif ACTIVATION == "gelu":
        x = gelu(x)
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
