"""What the self-test last said of this machine, kept for the sweeps that come after it.

It lies in the user's state folder (XDG_STATE_HOME, else ~/.local/state) and counts only on the machine and the Python
that it was measured with.
"""

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.errors import ToolError
from contracts.folder import FORMAT, read_json, write_json
from harness.metadata import machine

_WHAT_COUNTS = ("cpu", "cpus_allowed", "architecture")


@dataclass(frozen=True, slots=True)
class Trust:
    """Up to how many users one load process told the truth, and the level that failed (None: none did)."""

    users: int
    failed_at: int | None
    why: str
    measured_at: str

    @classmethod
    def now(cls, users: int, failed_at: int | None, why: str) -> "Trust":
        return cls(users, failed_at, why, datetime.now(UTC).isoformat(timespec="seconds"))


def state_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "loadgen" / "selftest.json"


def save(trust: Trust) -> Path | None:
    """Keep it for later sweeps; None where the state folder may not be written."""
    path = state_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"format": FORMAT, "here": _here(), **asdict(trust)})
    except OSError:
        return None
    return path


def recall() -> dict[str, Any] | None:
    """Give what was kept, as sweep.json holds it; None when there is nothing, or it is of another machine."""
    try:
        document = read_json(state_file())
        if document["here"] != _here():
            return None
        return asdict(Trust(*(document[name] for name in Trust.__slots__)))
    except (ToolError, KeyError, TypeError):
        return None


def _here() -> dict[str, str]:
    facts = machine()
    return {name: facts[name] for name in _WHAT_COUNTS} | {"python": platform.python_version()}
