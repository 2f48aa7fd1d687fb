"""`loadgen worker`: give this machine to a `loadgen run --workers-from` on another one, until that one is done."""

import argparse
import os
import sys
from pathlib import Path

from contracts.errors import UsageError
from contracts.remote import DEFAULT_PORT, LEAST_SECRET, SECRET_NAME


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "worker",
        description=__doc__,
        epilog=f"example: {SECRET_NAME}=... loadgen worker --master 10.0.0.1:{DEFAULT_PORT}",
    )
    parser.add_argument("--master", required=True, metavar="HOST:PORT", help="where `loadgen run --bind` listens")
    parser.add_argument(
        "--secret-file", type=Path, metavar="FILE", help=f"holds the shared secret (default: {SECRET_NAME})"
    )
    parser.set_defaults(run=run)


def secret_from(file: Path | None) -> str | None:
    """Read the shared secret from a file or the environment; None where neither is given. Raises UsageError."""
    if file is None:
        secret = os.environ.get(SECRET_NAME)
    else:
        try:
            secret = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the secret from {file}: {error}") from error
    if secret is not None and len(secret) < LEAST_SECRET:
        raise UsageError(f"the shared secret has {len(secret)} characters: it takes at least {LEAST_SECRET}")
    return secret


def run(options: argparse.Namespace) -> int:
    """Become the worker: a fresh interpreter, for locust patches the one that it is imported in."""
    host, colon, port = options.master.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--master {options.master}: expected HOST:PORT")
    secret = secret_from(options.secret_file)
    if secret is None:
        raise UsageError(f"set {SECRET_NAME}, or give --secret-file: the master prints the secret, or was given one")
    os.environ[SECRET_NAME] = secret
    words = [sys.executable, "-m", "loadgen.remote.worker", host.strip("[]"), port]
    os.execv(words[0], words)  # noqa: S606 - ourselves
