"""Measurement: how long a kernel takes, how sure that is, and how near its ceiling.

It knows clocks, caches, devices and statistics. It does not know how kernels are found, built, checked, chosen or
stored. `protocol.measure` is the one function that times candidates against each other; nothing quotes a time
that did not come through it. Read `protocol`, then `interleave` with `warming`, `arguments`, `clocks` with `monotonic`,
`cuda` and `jax_clock`, `stats` and `series`; then `device` (lock), `state` with `conditions`, `energy` and `roofline`.
Try it: `python -m kernelyard bench rmsnorm`.

Beside time it counts memory accesses, without a GPU: `traffic` sums up what a backend traces, with `accesses`, `hazards`
(races, bounds) and `indexing`, the model of lanes and sectors. Try it: `python -m kernelyard traffic softmax --kernel triton.row`.
"""
