"""The gluon backend: warp-specialised kernels for Hopper in Triton's Gluon, where barriers, copies and registers are placed by hand.

Of the other plugins it knows the Triton one alone, whose way to launch compiled code it shares. There is no interpreter: a check needs
the GPU; without one the compiler tells registers, spills and shared memory. Read `matmul` first, then `attention`.
"""
