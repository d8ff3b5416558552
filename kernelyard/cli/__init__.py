"""The command line: thin commands over the other rooms, one file for each family of commands.

A command parses, calls, prints; heavy imports happen inside it, so that `list` and `--help` answer at once. Results go
to stdout (one JSON object with --json), progress and problems to stderr. Exit codes: 0 fine, 1 the answer is no, 2 misuse,
130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

COMMANDS = {
    "list": "kernelyard.cli.inventory:list_command",
    "explain": "kernelyard.cli.inventory:explain",
    "plugins": "kernelyard.cli.inventory:plugins",
    "doctor": "kernelyard.cli.doctor:doctor",
    "check": "kernelyard.cli.check:check",
    "repro": "kernelyard.cli.repro:repro",
    "boundary": "kernelyard.cli.boundary:boundary",
    "bench": "kernelyard.cli.bench:bench",
    "roofline": "kernelyard.cli.roofline:roofline",
    "traffic": "kernelyard.cli.traffic:traffic",
    "tune": "kernelyard.cli.tune:tune",
    "replay": "kernelyard.cli.replay:replay",
    "cache": "kernelyard.cli.cache:cache",
    "dashboard": "kernelyard.cli.dashboard:dashboard",
    "profile": "kernelyard.cli.profile:profile",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of a working day: look, check, time, tune, profile."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        reference = COMMANDS.get(cmd_name)
        if reference is None:
            return None
        module, _, attribute = reference.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kernelyard")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def group(debug: bool) -> None:
    """Which kernels can run here, are they right, which is fastest, and what does that do to a model?

    Start with `kernelyard list`, `kernelyard tune rmsnorm`, `kernelyard profile`.
    """


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; every expected failure is one message on stderr and an exit code."""
    from kernelyard.errors import KernelyardError
    from kernelyard.registry.answer import DeclarationError

    debug = "--debug" in arguments
    try:
        result = group.main(arguments, prog_name="kernelyard", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("kernelyard: interrupted; what had finished is kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (KernelyardError, DeclarationError) as error:
        if debug:
            raise
        print(f"kernelyard: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except Exception as error:
        if debug:
            raise
        print(
            f"kernelyard: this should not have happened: {type(error).__name__}: {error}. Again with --debug for the traceback.",
            file=sys.stderr,
        )
        return 1
