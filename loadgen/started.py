"""A load process as whoever started it speaks with it, for one that needs no harness."""

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from contracts.errors import LoadError
from contracts.load import LoadSpec


class LoadProcess:
    """One `python -m loadgen.process`, told what to do by contracts.load's lines; killed when this is left."""

    def __init__(self, spec: LoadSpec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say(spec.to_json())

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, do: str, **data: Any) -> None:
        self._say(json.dumps({"do": do, **data}))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def until(self, name: str) -> dict[str, Any]:
        """Pass over what it says until this event; give that. Raises LoadError when it says an error, or ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
            if event["event"] == "error":
                raise LoadError(f"the load process: {event.get('message', 'unknown error')}")
        raise LoadError(f"the load process ended before {name!r}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
