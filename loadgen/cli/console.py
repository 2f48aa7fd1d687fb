"""Standard output for tables: as wide as the terminal, or a fixed width where there is none."""

import sys

from rich.console import Console


def stdout_console(plain_width: int) -> Console:
    """Open standard output; `plain_width` columns where it is no terminal."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else plain_width)
