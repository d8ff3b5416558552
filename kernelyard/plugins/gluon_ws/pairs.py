"""Weights in registers from one block of keys to the next, two in each: 16-bit values that a loop carries are taken apart at its end and
put together again at its start, 64 PRMT a block of 128 keys beside 32 conversions, half of them before the product that waits for them.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def paired(values, dtype: gl.constexpr):
    """Values of neighbouring columns, rounded to `dtype`, as 32-bit words."""
    first, second = gl.split(gl.reshape(values, (values.shape[0], values.shape[1] // 2, 2)))
    asm: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;" if dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(asm, "=r,f,f", [first, second], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpaired(words, dtype: gl.constexpr, layout: gl.constexpr):
    """What `paired` took, as values of `dtype` in `layout`."""
    first = words.to(gl.int16).to(dtype, bitcast=True)
    second = (words >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.reshape(gl.join(first, second), (words.shape[0], words.shape[1] * 2)), layout)
