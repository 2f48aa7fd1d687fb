"""`loadgen COMMAND`: parses, calls, prints, exits."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from contracts.errors import ToolError
from loadgen.cli.parser import Parser

INTERRUPTED = 130
COMMANDS = (
    "sweep",
    "run",
    "serve",
    "gil",
    "nsys",
    "report",
    "show",
    "compare",
    "export",
    "doctor",
    "selftest",
    "worker",
)


def build_parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser with the commands named; each is a module of this package, imported only when it is wanted."""
    parser = Parser(
        prog="loadgen",
        description="Find out why a Python LLM server is slow under load, and prove which knob fixes it.",
        epilog="example: loadgen sweep --concurrency 2048",
    )
    parser.add_argument("--version", action="version", version=f"loadgen {version('loadgen-gil')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        import_module(f"loadgen.cli.{name}").add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0 done, 1 finished but something failed, 2 wrong usage or environment, 130 interrupted."""
    words = sys.argv[1:] if argv is None else list(argv)
    wanted = words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS
    options = build_parser(wanted).parse_args(words)
    options.argv = ["loadgen", *words]
    try:
        status: int = options.run(options)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
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
