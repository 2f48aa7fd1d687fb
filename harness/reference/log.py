"""The stack's logger: one line per message on stdout, dropped below the level (the setting `log_level`).

`debug` takes finished strings on purpose: as in the original, hot calls spell out their arguments even when nobody
reads them, and that costs GIL time (docs/reference-stack.md says how much).
"""

import sys
import time

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_level = _LEVELS["info"]


def set_level(name: str) -> None:
    """Set this process' level: debug, info, warning or error."""
    global _level  # noqa: PLW0603 - one logger a process, as the original's
    _level = _LEVELS[name]


def _write(mark: str, *parts: object) -> None:
    stamp = time.strftime("%m/%d/%Y-%H:%M:%S")
    sys.stdout.write(f"[{stamp}] [REF] [{mark}] " + " ".join(str(part) for part in parts) + "\n")
    sys.stdout.flush()


def debug(*parts: str) -> None:
    text = " ".join(parts)
    if _level <= _LEVELS["debug"]:
        _write("D", text)


def info(*parts: str) -> None:
    if _level <= _LEVELS["info"]:
        _write("I", *parts)


def warning(*parts: str) -> None:
    if _level <= _LEVELS["warning"]:
        _write("W", *parts)


def error(*parts: str) -> None:
    _write("E", *parts)
