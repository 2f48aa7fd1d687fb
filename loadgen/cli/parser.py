"""The command line's parser: argparse, but for a misspelt option it names the one that was meant."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """Its subcommands' parsers are of this kind too, and know their own options."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as argparse does; leave with status 2 at the first unknown option that is like a known one."""
        parsed, extras = super().parse_known_args(args, namespace)
        for word in extras:
            near = difflib.get_close_matches(word.partition("=")[0], self._option_string_actions, 1)
            if word.startswith("--") and near:
                self.error(f"there is no option {word}: did you mean {near[0]}?")
        return parsed, extras
