"""The reference serving stack, launched as a child of the harness."""

import http.client
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.clock import NS_PER_S
from contracts.errors import LaunchError, UsageError
from contracts.records import ServerRow
from harness.httpget import call, get_json
from harness.placement import Placement
from harness.process import Child, Guard, wait_until
from harness.reference.observed import VARIABLE
from harness.reference.settings import KNOBS, ReferenceSettings, require_extras, unknown_knob
from harness.stacks.base import RunningServer, ServerView

START_TIMEOUT_S = 60.0
FIRST_REQUEST_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 30.0
_READY = re.compile(r"^READY (\{.*\})$", re.MULTILINE)
_KNOBS = frozenset(knob.env for knob in KNOBS)


class ReferenceServer:
    """A reference stack that is up."""

    model = "reference"

    def __init__(self, child: Child, url: str, direct_socket: Path) -> None:
        self._child = child
        self.url = url
        self.direct_socket: Path | None = direct_socket

    def view(self) -> ServerView:
        try:
            info = get_json(self.url, "/server_info", timeout_s=ASK_TIMEOUT_S)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise LaunchError(f"the reference stack at {self.url} does not say who is who: {error}") from error
        threads = {int(tid): name for process in info["processes"] for tid, name in process["threads"].items()}
        return ServerView(
            processes={process["role"]: process["pid"] for process in info["processes"]},
            executor_pid=info["executor_pid"],
            threads=threads,
            facts={"settings": info["settings"], "submit": info["submit"]},
        )

    def alive(self) -> bool:
        return self._child.running()

    def truth(self) -> list[ServerRow]:
        try:
            records = get_json(self.url, "/perf_metrics", timeout_s=ASK_TIMEOUT_S)
        except (OSError, ValueError, http.client.HTTPException):
            return []
        return [_server_row(record) for record in records]

    def stop(self, grace_s: float) -> None:
        self._child.stop(grace_s)

    def last_log_lines(self) -> str:
        return self._child.last_lines()


class ReferenceStack:
    """Knobs are environment variables (harness.reference.settings lists them)."""

    name = "reference"
    drives: tuple[str, ...] = ("rpc", "http")
    writes_steps = True
    placeable = True

    def check_knob(self, name: str, value: str) -> None:
        """See that the stack can be launched with this knob in this environment."""
        if name not in _KNOBS:
            raise UsageError(unknown_knob(name))
        require_extras(ReferenceSettings.from_env(_environment({name: value})))

    def one_process(self, knobs: Mapping[str, str]) -> bool:
        return ReferenceSettings.from_env(_environment(knobs)).layout == "thread"

    def launch(
        self, guard: Guard, knobs: Mapping[str, str], placement: Placement, folder: Path, log: Path
    ) -> RunningServer:
        direct_socket = folder / "direct"
        argv = [sys.executable, "-m", "harness.reference.serve", "--port", "0", "--direct-socket", str(direct_socket)]
        if placement.rank0:
            argv += ["--rank0-cpus", ",".join(map(str, placement.rank0))]
        child = Child(guard, argv, log=log, cpus=placement.server, env={**_environment(knobs), "TMPDIR": str(folder)})
        try:
            url = _await_ready(child, log)
            _answer_one(child, url)
        except BaseException:
            child.stop(0.0)
            raise
        return ReferenceServer(child, url, direct_socket)


def _environment(knobs: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, VARIABLE: str(os.getpid()), **knobs}


def _await_ready(child: Child, log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while wait_until(deadline):
        match = _READY.search(log.read_text(encoding="utf-8", errors="replace"))
        if match is not None:
            url: str = json.loads(match[1])["url"]
            return url
        if not child.running():
            raise LaunchError(
                f"the reference stack ended with status {child.popen.returncode} while starting:\n{child.last_lines()}"
            )
    raise LaunchError(f"the reference stack was not ready within {START_TIMEOUT_S:g} s:\n{child.last_lines()}")


def _answer_one(child: Child, url: str) -> None:
    """Wait for /health, then for one real answer."""
    deadline = time.monotonic() + FIRST_REQUEST_TIMEOUT_S
    body = {"model": "reference", "prompt": [256, 257, 258], "max_tokens": 2, "ignore_eos": True}
    last = "no answer"
    while wait_until(deadline):
        try:
            status, _ = call(url, "/health", timeout_s=5.0)
            if status == 200:
                status, content = call(url, "/v1/completions", body=body, timeout_s=FIRST_REQUEST_TIMEOUT_S)
                if status == 200:
                    return
                last = f"the first request answered {status}: {content[:200].decode(errors='replace')}"
                break
            last = f"/health answered {status}"
        except (OSError, http.client.HTTPException) as error:
            last = repr(error)
        if not child.running():
            break
    raise LaunchError(f"the reference stack at {url} is not healthy: {last}\n{child.last_lines()}")


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)


def _server_row(record: Mapping[str, Any]) -> ServerRow:
    times = record["perf_metrics"]["timing_metrics"]
    return ServerRow(
        server_id=record["response_id"] or str(record["request_id"]),
        server_arrival_ns=_ns(times["server_arrival_time"]),
        arrival_ns=round(times["arrival_time"] * NS_PER_S),
        first_scheduled_ns=_ns(times["first_scheduled_time"] or None),
        first_token_ns=_ns(times["first_token_time"] or None),
        last_token_ns=_ns(times["last_token_time"] or None),
        server_first_token_ns=_ns(times["server_first_token_time"]),
    )
