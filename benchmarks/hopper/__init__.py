"""What docs/hopper.md says that depends on data: `rows` reads the stored benches, `arithmetic` needs shapes alone, `tables` lays rows side
by side, `words` makes sentences of them, each only where the rows bear it out. `benchmarks/hopper_page.py` puts all into the page."""
