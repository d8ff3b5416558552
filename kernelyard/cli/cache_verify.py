"""`cache verify`: whether the store is sound, with an exit code."""

from __future__ import annotations

import click

from kernelyard.cli.output import emit, json_option


@click.command(epilog="Example: kernelyard cache verify")
@json_option
def verify(as_json: bool) -> int:
    """Look at every page, foreign key, choice and rule of the store, and change nothing. Exit code 1 with what is broken."""
    from kernelyard.store.files import database_path
    from kernelyard.store.soundness import problems

    path, found = database_path(), problems()
    if as_json:
        emit({"store": str(path), "exists": path.is_file(), "problems": found})
    elif found:
        print("\n".join([f"{path} is broken:", *(f"  {problem}" for problem in found)]))
    else:
        print(f"{path} is sound." if path.is_file() else f"There is no store yet at {path}.")
    return 1 if found else 0
