"""`loadgen serve`: the reference stack alone, until Ctrl-C."""

import argparse

from harness.reference.serve import add_options
from harness.reference.serve import run as serve


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        description="Run the reference serving stack: prints one line READY {url, pids} when it is up.",
        epilog="example: loadgen serve --port 8000 --submit-batch-max 32",
    )
    add_options(parser)
    parser.set_defaults(run=serve)
