"""The registry: what ops, kernels and backends exist, which kernel serves a call, and why.

It knows declarations and arguments. It does not know how kernels are written, verified, timed,
tuned or stored; a stored choice reaches it through `choices.connect`. Nothing here imports torch
until an op is called. Read `spec`, then `op` (`schema`, `matrix`), `space`, `kernel`, `backend`; `discovery`,
`description`, `listing`, `registry`; `choices`, `proofs`, `pins`, `dispatch`, `operator`, `torch_ops`.
"""
