"""The executor loop's turns and the collector's pauses, from the server's log: parsers, and a tail of a log file.

Known are TensorRT-LLM's format of 2026 (`key = value`, `num_scheduled_requests` third) and the older one, where that
key stands after the timestamp with a colon. Keys may be added; the order does not matter.
"""

import ast
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from contracts.arrow import RecordWriter
from contracts.clock import NS_PER_MS, NS_PER_S, ClockPair, clock_pair
from contracts.doubts import Doubt
from contracts.records import GC, STEPS, GcRow, StepRow
from harness.observers.ticker import Ticker

EVERY_S = 0.5
_PAIR = re.compile(r"(\w+)\s*[=:]\s*(\{[^}]*\}|[^,{}]+)")
_WHOLE_SECONDS = re.compile(r"timestamp = [^.,]+(?:,|$)")
_PAUSE = re.compile(
    r"gc: generation = (?P<generation>\d+), pause = (?P<ms>\d+\.\d+)ms, collected = (?P<collected>\d+), "
    r"monotonic = (?P<began_s>\d+\.\d{6})"
)
_STAMPS = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S")


def parse_line(line: str, clock: ClockPair) -> StepRow | None:
    """Read one log line; None when it is not an iteration line, or is one cut short. Times in it are local time."""
    at = line.find("iter = ")
    if at < 0:
        return None
    pairs = {key: value.strip() for key, value in _PAIR.findall(line[at:])}
    try:
        states = ast.literal_eval(pairs["states"]) if "states" in pairs else {}
        fetched, total = _fraction(pairs.get("currank_total_requests"))
        return StepRow(
            t_ns=clock.to_monotonic_ns(_realtime_ns(pairs["timestamp"])),
            iteration=int(pairs["iter"]),
            rank=int(pairs.get("rank", "0")),
            host_step_ms=_ms(pairs["host_step_time"]),
            prev_device_step_ms=_ms_or_none(pairs.get("prev_device_step_time", "N/A")),
            scheduled_requests=int(pairs["num_scheduled_requests"]),
            fetched_requests=fetched,
            fetched_requests_total=total,
            kv_cache_util=_float_or_none(pairs.get("kv_cache_util", "N/A")),
            ctx_requests=states.get("num_ctx_requests"),
            ctx_tokens=states.get("num_ctx_tokens"),
            generation_tokens=states.get("num_generation_tokens"),
            new_requests=_int_or_none(pairs.get("new_requests")),
            rpc_messages=_int_or_none(pairs.get("rpc_messages")),
            rpc_requests=_int_or_none(pairs.get("rpc_requests")),
            gil_wait_ms=_ms_or_none(pairs.get("gil_wait", "N/A")),
        )
    except (KeyError, ValueError, SyntaxError):
        return None


def parse_pause(line: str) -> GcRow | None:
    """Read a log line about a pause of the garbage collector; None when it is another line, or is cut short."""
    found = _PAUSE.search(line)
    if found is None:
        return None
    seconds, micros = found["began_s"].split(".")
    return GcRow(
        t_ns=int(seconds) * NS_PER_S + int(micros) * 1000,
        pause_ns=round(float(found["ms"]) * NS_PER_MS),
        generation=int(found["generation"]),
        collected=int(found["collected"]),
    )


def _realtime_ns(text: str) -> int:
    for stamp in _STAMPS:
        try:
            moment = datetime.strptime(text, stamp)  # noqa: DTZ007 - the log's times are local
        except ValueError:
            continue
        return int(moment.replace(microsecond=0).timestamp()) * NS_PER_S + moment.microsecond * 1000
    raise ValueError(text)


def _fraction(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, _, second = text.partition("/")
    return int(first), int(second)


def _ms(text: str) -> float:
    return float(text.removesuffix("ms"))


def _ms_or_none(text: str) -> float | None:
    return None if text.startswith("N/A") else _ms(text)


def _float_or_none(text: str) -> float | None:
    return None if text == "N/A" else float(text)


def _int_or_none(text: str | None) -> int | None:
    return None if text is None else int(text)


class StepPlacer:
    """Places rows within the second that their timestamps name, where a log (the original's) has no fractions.

    A row comes one host step after the one before, unless its timestamp says later: that puts it at that second's
    beginning. So rows are never late, and from the second second on early by less than a step; idle time between two
    rows, which no step tells of, makes rows early by as much until the next second begins.
    """

    def __init__(self) -> None:
        self._last_ns: dict[int, int] = {}

    def place(self, row: StepRow) -> StepRow:
        """Return the row with its time; rows of a rank come in order."""
        last_ns = self._last_ns.get(row.rank)
        expected_ns = row.t_ns if last_ns is None else last_ns + round(row.host_step_ms * 1e6)
        self._last_ns[row.rank] = t_ns = min(max(expected_ns, row.t_ns), row.t_ns + NS_PER_S - 1)
        return replace(row, t_ns=t_ns)


class IterationTail:
    """A thread that follows a server's log and writes steps.arrow and gc.arrow as lines come."""

    def __init__(self, log: Path, steps: Path, pauses: Path, *, every_s: float = EVERY_S) -> None:
        self._log = log
        self._writer = RecordWriter(steps, STEPS)
        self._pauses = RecordWriter(pauses, GC)
        self._clock = clock_pair()
        self._placer = StepPlacer()
        self._position = 0
        self._rest = b""
        self.rows = 0
        self._ticker = Ticker("iteration_tail", self.catch_up, every_s)

    def start(self) -> None:
        self._ticker.start()

    def stop(self) -> tuple[Doubt, ...]:
        return self._ticker.stop(self._finish)

    def _finish(self) -> None:
        try:
            self.catch_up()
            self._writer.close()
        finally:
            self._pauses.close()

    def catch_up(self) -> None:
        """Read what the log has gained since the last time."""
        try:
            with open(self._log, "rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return
        self._position += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            text = line.decode("utf-8", "replace")
            row = parse_line(text, self._clock)
            if row is not None:
                self._writer.append(self._placer.place(row) if _WHOLE_SECONDS.search(text) else row)
                self.rows += 1
            elif (pause := parse_pause(text)) is not None:
                self._pauses.append(pause)
        self._writer.tick()
        self._pauses.tick()
