"""The store: what was measured and chosen, in one SQLite file that survives whatever happens around it.

It knows records and files. It does not know kernels, how a time was taken, or whether a choice is still
valid (the registry compares hashes), nor whether a proof is. Writing goes through `database.open_store`; a process that only
serves calls uses `choices.find`, which opens read-only and treats whatever it can't read as a miss.
Read `records`, then `migrations`, `database`, `choices`, `results`; `exchange` and `importing` for what goes from store to store,
`trials` for what Optuna keeps in the same file. Look inside with any SQLite tool, for example `datasette kernelyard.db`: the
views `tuned`, `timed` and `failed` are for people.
"""
