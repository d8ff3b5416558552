"""The `triton` backend: kernels in Triton, compiled on an NVIDIA GPU, interpreted on a CPU for checking alone.

`kernels` declares them, `spaces` and `defaults` say what of each is tuned and why, `probe` whether they can run; one file an op
holds the code.
`build` compiles and launches, `offline` compiles without a GPU. It does not know how kernels are timed or chosen.
Try it: `kernelyard check rmsnorm --kernel triton.row`.
"""
