"""The tuner: which kernel and config is fastest on each workload, with evidence, and nothing lost on the way.

It knows search, trials in worker processes, finals and choices. It does not know how kernels are declared, checked,
timed or stored: those are registry, verify, measure and store. Read `tune` (the whole of it in order), then `plan`
(what to try), `bench` and `jobs` (build, check and time in a child), `search` and `studies` (Optuna), `finals`
(who wins), `report`. Try it: `python -m kernelyard tune rmsnorm`.
"""
