"""`loadgen COMMAND`: parses, calls, prints, exits."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from contracts.errors import ToolError
from loadgen.cli.parser import Parser
from loadgen.cli.screen import visible

INTERRUPTED = 130
COMMANDS = {
    "sweep": "measure knob values against each other over concurrencies and repeats",
    "run": "load a running server, in a folder like a sweep's",
    "serve": "run the reference serving stack alone",
    "gil": "show who waits for the GIL of a running process, and for whom",
    "nsys": "read the GIL ranges of an Nsight Systems trace into a report",
    "report": "write a sweep's HTML report anew",
    "show": "print a sweep's figures",
    "compare": "compare two sweeps; exit 1 when a --fail-if gate trips",
    "export": "write a sweep in other tools' formats",
    "doctor": "say what may be observed on this machine, or what its client can carry",
    "selftest": "measure this tool's own error, against a server of known truth",
    "worker": "run load processes for a master on another machine",
}


def build_parser(name: str | None) -> argparse.ArgumentParser:
    """Build the parser of one command, a module of this package; without a name, one that knows what there is.

    No other module is imported: `--help`, `--version` and a misspelt command need none.
    """
    parser = Parser(
        prog="loadgen",
        description="Find out why a Python LLM server is slow under load, and prove which knob fixes it.",
        epilog="example: loadgen sweep --concurrency 2048",
    )
    parser.add_argument("--version", action="version", version=f"loadgen {version('loadgen-gil')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    if name is not None:
        import_module(f"loadgen.cli.{name}").add_parser(commands)
        return parser
    for known, what_for in COMMANDS.items():
        commands.add_parser(known, help=what_for)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0 done, 1 finished but something failed, 2 wrong usage or environment, 130 interrupted."""
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words[:1] and words[0] in COMMANDS else None
    options = build_parser(name).parse_args(words)
    options.argv = ["loadgen", *words]
    try:
        status: int = options.run(options)
    except ToolError as error:
        print(f"error: {visible(str(error), keep=chr(10))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}: cells that were done are kept", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
