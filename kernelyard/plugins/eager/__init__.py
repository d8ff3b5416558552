"""The `torch` backend: every op as plain torch, what serves when no other kernel can.

`torch.eager` keeps the whole contract: any strides, any dtype. `torch.plain` is what a user has without kernelyard where that
is not the contract (softmax: rows of all -inf are NaN; swiglu: one rounding more) or torch's own business (a kernel that only
autograd calls); it is there to be timed against and never serves a call.
It knows no compiler. Try it: `kernelyard check softmax --kernel torch.eager`.
"""
