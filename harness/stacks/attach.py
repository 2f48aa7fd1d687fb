"""A server that somebody else runs: it is looked at and loaded, never started or stopped."""

import http.client
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.errors import LaunchError, UsageError
from contracts.records import ServerRow
from harness.httpget import call, get_json
from harness.placement import Placement
from harness.process import Guard
from harness.stacks.base import RunningServer, ServerView

ASK_TIMEOUT_S = 10.0
FIRST_REQUEST_TIMEOUT_S = 600.0
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
_LEAST_RESPONSE = 16  # output tokens; OpenAI's own server takes no fewer


class AttachedServer:
    """Somebody's server; `pids` name the processes to watch, the executor's first."""

    direct_socket: Path | None = None

    def __init__(self, url: str, model: str, pids: Sequence[int]) -> None:
        self.url = url
        self.model = model
        self._pids = pids

    def view(self) -> ServerView:
        processes = {f"server{n or ''}": pid for n, pid in enumerate(self._pids)}
        return ServerView(processes=processes, executor_pid=self._pids[0] if self._pids else None)

    def alive(self) -> bool:
        return all(Path(f"/proc/{pid}").exists() for pid in self._pids)

    def truth(self) -> list[ServerRow]:
        return []

    def stop(self, _: float) -> None:
        """Leave it running: we did not start it."""

    def last_log_lines(self) -> str:
        return "(its log is not ours to read)"


class AttachStack:
    """The server at `url`. Raises UsageError at once when it cannot be reached, so that nothing is begun in vain."""

    name = "attach"
    drives: tuple[str, ...] = ("http",)
    writes_steps = False
    placeable = False

    def __init__(self, url: str, *, endpoint: str, model: str | None, pids: Sequence[int]) -> None:
        self._url = url.rstrip("/")
        self._endpoint = endpoint
        self._pids = pids
        for pid in pids:
            if not Path(f"/proc/{pid}").exists():
                raise UsageError(f"--pid {pid}: there is no such process here")
        self._model = model or self._first_model()

    def _first_model(self) -> str:
        try:
            models = get_json(self._url, "/v1/models", timeout_s=ASK_TIMEOUT_S)
            name: str = models["data"][0]["id"]
        except (OSError, http.client.HTTPException) as error:
            raise UsageError(f"cannot reach {self._url}: {error}. Is the server up, and --url right?") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UsageError(f"{self._url}/v1/models names no model ({error}): give --model") from error
        return name

    def check_knob(self, name: str, _: str) -> None:
        raise UsageError(f"{name} cannot be set on a server that is already running")

    def one_process(self, _: Mapping[str, str]) -> bool:
        return False

    def launch(self, _: Guard, __: Mapping[str, str], ___: Placement, ____: Path, _____: Path) -> RunningServer:
        """Wait until the server has answered one real request."""
        body: dict[str, object] = {"model": self._model}
        if self._endpoint == "responses":
            body |= {"max_output_tokens": _LEAST_RESPONSE, "input": "Hello"}
        elif self._endpoint == "chat":
            body |= {"max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
        else:
            body |= {"max_tokens": 1, "prompt": "Hello"}
        try:
            status, content = call(self._url, _PATHS[self._endpoint], body=body, timeout_s=FIRST_REQUEST_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            raise LaunchError(f"the server at {self._url} does not answer: {error}") from error
        if status != 200:
            raise LaunchError(
                f"the server at {self._url} answered its first request with {status}: "
                f"{content[:300].decode(errors='replace')}"
            )
        return AttachedServer(self._url, self._model, self._pids)
