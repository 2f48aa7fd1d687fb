"""The load process: `python -m loadgen.process`, told what to do by `contracts.load`'s lines on stdin.

This is the only module that lets locust in, which patches the interpreter of this process and of no other.
Exit status: 0 done, 2 the spec or the environment is wrong, 1 it broke, 130 the harness went away or a signal came.
"""

import contextlib
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, process_time_ns
from typing import Any

import gevent
import locust  # noqa: F401 - before anything of ours: it patches what later imports may keep references to
from gevent.queue import Empty, Queue

from contracts.clock import NS_PER_S
from contracts.errors import ToolError, UsageError
from contracts.load import LoadEvent, LoadSpec
from contracts.records import RequestRow
from loadgen import kinds
from loadgen.crew import LEAD_NS, Crew, Habits, schedule_of
from loadgen.drives import open_drive
from loadgen.failing import FAILURES_A_USER, LEAST_FAILURES, FailingRule
from loadgen.lines import Lines
from loadgen.locustfile import user_classes
from loadgen.recorder import Recorder
from loadgen.transport.kernelclock import KernelClock
from loadgen.transport.reactor import Reactor
from loadgen.users import REQUEST_TYPES, LoadEnvironment, LoadUser, WorkloadUser
from loadgen.webpage import WebPage
from loadgen.workload.arrival import CLOSED, TRACE
from loadgen.workload.synthetic import Workload
from loadgen.workload.traces.source import TRACE_LEAD_NS, TraceWorkload

_GRACE_S = 1.0  # for users to write their rows once their requests were cancelled
_LEAST_RAMP_S = 0.001
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class _Word:
    """Something that happened: a command, `gone`, `broken`, or a turn of the load's own (`ramped`, `quota`, ...)."""

    do: str
    data: dict[str, Any]


@dataclass(slots=True)
class _Window:
    """The steady window's quota: how many requests that started inside it are over."""

    quota: int | None
    start_ns: int | None = None
    ended: int = 0

    def full_with(self, row: RequestRow) -> bool:
        """Count a row; True exactly once, when it fills the quota."""
        if self.quota is None or self.start_ns is None or row.sent_ns < self.start_ns:
            return False
        self.ended += 1
        return self.ended == self.quota


class LoadProcess:
    """One run of the load: ready, start, ramped, steady, drain, done."""

    def __init__(self, spec: LoadSpec, lines: Lines) -> None:
        self._spec = spec
        self._lines = lines
        self._words: Any = Queue()
        self._window = _Window(spec.quota)
        self._helpers: list[Any] = []
        self._start_ns, self._start_cpu_ns = monotonic_ns(), process_time_ns()
        if spec.users < 1 or spec.spawn_rate <= 0:
            raise UsageError(f"cannot run {spec.users} users at {spec.spawn_rate} users/s: both must be positive")
        clock, habits = KernelClock(), Habits.of(spec)
        trace = TraceWorkload(spec) if spec.workload.trace else None
        workload = trace or Workload(spec.workload)
        schedule = schedule_of(spec, trace)
        self._drive = open_drive(spec, workload.prompts, Reactor(clock))
        least = LEAST_FAILURES if schedule else max(LEAST_FAILURES, FAILURES_A_USER * spec.users)
        rule = FailingRule(spec.give_up_s, least)
        paths = Path(spec.requests_path), Path(spec.client_path)
        self._recorder = Recorder(spec.worker, *paths, self._on_end, clock, rule)
        self._crew = Crew(
            workload=workload,
            recorder=self._recorder,
            make_caller=self._drive.make_caller,
            name=self._drive.name,
            users=spec.users,
            first_user=spec.first_user,
            spawn_rate=spec.spawn_rate,
            on_ramped=lambda: self._say("ramped"),
            schedule=schedule,
            habits=habits,
            on_over=lambda: self._say("over"),
            on_unusable=lambda message: self._say("unusable", message=message),
            lead_ns=TRACE_LEAD_NS if spec.arrival == TRACE else LEAD_NS,
        )
        classes: list[type[LoadUser]] = [WorkloadUser]
        if spec.locustfile is not None:
            classes = [*_own_users(spec, spec.locustfile)]
        self._environment = LoadEnvironment(self._crew, *classes, request_type=REQUEST_TYPES[spec.drive])
        self._environment.events.user_error.add_listener(self._on_user_error)  # type: ignore[no-untyped-call]
        self._runner = self._environment.create_local_runner()
        self._page = None if spec.web_port is None else WebPage(self._environment, spec.web_port)

    def run(self) -> int:
        """Serve until drained, or until the harness is gone."""
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self._say, "gone")
        self._help(self._listen)
        self._help(self._recorder.sample_forever)
        try:
            self._emit("ready")
            while True:
                word = self._words.get()
                if word.do == "start":
                    self._start()
                    self._help(self._tell_progress)
                elif word.do == "steady":
                    self._begin_window(word.data)
                elif word.do == "users":
                    self._change_users(int(word.data["users"]), float(word.data["ramp_s"]))
                elif word.do in ("ramped", "quota"):
                    if word.do == "ramped":
                        _spare_collections()
                    self._emit(word.do)
                elif word.do == "over":
                    self._emit("quota")
                    return self._drain()
                elif word.do == "unusable":
                    return self._drain(word.data["message"])
                elif word.do == "stop":
                    return self._drain()
                else:
                    return self._stop_at_once(word)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Stop everything and close the files. May be called twice."""
        gevent.killall(self._helpers)
        if self._page is not None:
            self._page.close()
            self._page = None
        self._runner.quit()
        self._drive.close()
        self._recorder.close()

    def _help(self, work: Callable[[], None]) -> None:
        self._helpers.append(gevent.spawn(work))

    def _start(self) -> None:
        _spare_collections()
        self._start_ns, self._start_cpu_ns = monotonic_ns(), process_time_ns()
        self._crew.start_ns = self._start_ns
        self._runner.start(self._spec.users, spawn_rate=self._spec.spawn_rate)

    def _change_users(self, users: int, ramp_s: float) -> None:
        most = self._spec.most_users or self._spec.users
        if not 1 <= users <= most:
            raise UsageError(f"cannot have {users} users in a load that was announced for 1 to {most}")
        before = self._crew.wanted
        rate = max(abs(users - self._crew.users), 1) / max(ramp_s, _LEAST_RAMP_S)
        self._crew.change(users, rate)
        if users > before:
            self._runner.start(users, spawn_rate=rate)

    def _begin_window(self, data: dict[str, Any]) -> None:
        self._window.start_ns = int(data["start_ns"])
        if data.get("end_ns") is not None:
            left_s = (int(data["end_ns"]) - monotonic_ns()) / NS_PER_S
            gevent.spawn_later(max(0.0, left_s), self._say, "stop")

    def _drain(self, problem: str | None = None) -> int:
        """Send nothing new; let what is in flight end, for at most `drain_s`. Then tell a problem, if there is one."""
        self._crew.stop()
        deadline_ns = monotonic_ns() + int(self._spec.drain_s * NS_PER_S)
        while self._recorder.in_flight:
            left_s = (deadline_ns - monotonic_ns()) / NS_PER_S
            if left_s <= 0:
                self._cut(kinds.UNFINISHED, f"still running {self._spec.drain_s:g} s after the stop")
                break
            with contextlib.suppress(Empty):
                word = self._words.get(timeout=left_s)
                if word.do in ("gone", "broken"):
                    return self._stop_at_once(word)
                if word.do in ("ramped", "quota"):
                    self._emit(word.do)
        wall_ns, cpu_ns = monotonic_ns() - self._start_ns, process_time_ns() - self._start_cpu_ns
        self._finish()
        if problem is not None:
            self._emit("error", message=problem)
            return UsageError.exit_status
        self._emit(
            "done",
            completed=self._recorder.completed,
            failed=self._recorder.failed,
            unfinished=self._recorder.unfinished,
            aborted=self._recorder.aborted,
            unsent=self._crew.unsent,
            cpu_s=cpu_ns / NS_PER_S,
            wall_s=wall_ns / NS_PER_S,
        )
        return 0

    def _stop_at_once(self, word: _Word) -> int:
        self._crew.stop()
        self._cut(kinds.CANCELLED, "the load process was told to stop at once")
        if word.do != "broken":
            return _INTERRUPTED
        with contextlib.suppress(OSError):
            self._lines.emit(LoadEvent("error", {"message": word.data["message"]}))
        return 1

    def _cut(self, kind: str, message: str) -> None:
        self._crew.cut_kind, self._crew.cut_message = kind, message
        self._recorder.cancel_all(kind, message)
        deadline_ns = monotonic_ns() + int(_GRACE_S * NS_PER_S)
        while self._recorder.in_flight and monotonic_ns() < deadline_ns:
            gevent.sleep(0.005)
        self._runner.quit()  # those that were still connecting; they write their rows too

    def _listen(self) -> None:
        while (line := self._lines.read()) is not None:
            try:
                document = json.loads(line)
                self._words.put(_Word(str(document.pop("do")), document))
            except (ValueError, KeyError, AttributeError, TypeError):
                self._say("broken", message=f"not a command: {line[:200]!r}")
        self._say("gone")

    def _tell_progress(self) -> None:
        while True:
            gevent.sleep(1)
            recorder = self._recorder
            first_tokens, ttft_ms = recorder.take_first_tokens()
            self._emit(
                "progress",
                users=self._runner.user_count,
                in_flight=recorder.in_flight,
                completed=recorder.completed,
                failed=recorder.failed,
                failing=recorder.failing(),
                first_tokens=first_tokens,
                ttft_ms=ttft_ms,
            )

    def _on_end(self, row: RequestRow) -> None:
        if self._window.full_with(row):
            self._say("quota")
        if self._crew.stopping and not self._recorder.in_flight:
            self._say("drained")

    def _on_user_error(self, user_instance: LoadUser, exception: Exception, **_: Any) -> None:
        self._say("broken", message=f"a {type(user_instance).__name__} failed: {exception!r}")

    def _say(self, do: str, **data: Any) -> None:
        self._words.put(_Word(do, data))

    def _emit(self, event: str, **data: Any) -> None:
        try:
            self._lines.emit(LoadEvent(event, {"t_ns": monotonic_ns(), **data}))
        except OSError:  # the harness is gone
            self._say("gone")


def _own_users(spec: LoadSpec, path: str) -> Sequence[type[LoadUser]]:
    if spec.arrival != CLOSED or spec.drive != "http":
        raise UsageError("users of a --locustfile run in closed loop over HTTP: leave out --arrival")
    return user_classes(path)


def _spare_collections() -> None:
    """Keep what lives as long as the load (modules, pools, users) from being walked by every collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 1000)


@contextlib.contextmanager
def _told_as_error(lines: Lines) -> Iterator[None]:
    """Tell the harness why the load cannot run; the exit status follows from the error."""
    try:
        yield
    except ToolError as error:
        with contextlib.suppress(OSError):
            lines.emit(LoadEvent("error", {"message": str(error)}))
        raise SystemExit(error.exit_status) from error


def main() -> int:
    """Read the spec and run it."""
    lines = Lines.take_over_stdio()
    logging.getLogger("locust.runners").setLevel(logging.CRITICAL)  # its remarks on rates, CPU and ended users
    text = lines.read()
    if text is None:
        return _INTERRUPTED
    with _told_as_error(lines):
        try:
            spec = LoadSpec.from_json(text)
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"the first line is not a load spec: {error}") from error
        try:
            load = LoadProcess(spec, lines)
        except OSError as error:
            raise UsageError(f"cannot set up the load: {error}") from error
        return load.run()


if __name__ == "__main__":
    sys.exit(main())
