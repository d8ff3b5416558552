"""Verification: whether a kernel keeps its op's contract, and what is wrong when it does not.

It knows contracts, declared support and how kernels misbehave. It does not know how kernels are built, timed,
tuned or stored. Read `outcome`, then `oracle` (one workload) and `check` (a whole matrix); `isolation` runs
either in a child process that may crash or hang; `guards`, `workspace`, `edges`, `state`, `room`,
`precision`, `defences` and `diagnosis` are its parts.

What follows a failure: `shrink` and `reproduce` make it a script, `boundary` compares declared support with the real one,
`sanitizer` watches CUDA kernels from outside.

    python -m pytest tests/verify tests/wrong_kernels
"""
