"""The `compile` backend: each op's plain torch under torch.compile, default and max-autotune.

A baseline first of all. Compiling takes seconds, so these serve a call only by a stored choice or a pin, never by priority.
It knows nothing of how Inductor generates code. Try it: `kernelyard bench rmsnorm --kernel compile.default`.
"""
