"""The rows that capture writes and analysis reads, one frozen dataclass and one Arrow schema each.

Times are CLOCK_MONOTONIC nanoseconds of the machine that wrote them. A schema's version rises whenever a reader of the
old one would go wrong; added nullable columns do not raise it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import pyarrow as pa

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class RecordType(Generic[Row]):
    """A named, versioned record: the dataclass that is one row and the Arrow types of its fields, in order."""

    name: str
    version: int
    row: type[Row]
    types: Sequence[Any]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self.row))  # type: ignore[arg-type]

    def schema(self, **metadata: str) -> Any:
        """Build the Arrow schema; `record`, `version` and the given metadata travel in the file."""
        marks = {"record": self.name, "version": str(self.version), **metadata}
        return pa.schema(
            [pa.field(name, kind) for name, kind in zip(self.columns, self.types, strict=True)], metadata=marks
        )


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request as its client saw it; a failure is a row too, with `error_kind` set.

    `chunk_ns` holds the arrivals of token-carrying chunks only, `chunk_tokens` how many tokens each carried (None
    where the client cannot know). `sent_ns` is the first byte handed to the kernel. `server_id` joins the server's
    own record. `output_tokens_source` is `usage`, `chunks` or `wire`.

    `arrival_clock` says whose times `first_byte_ns`, `chunk_ns` and `end_ns` are: `kernel` (when the bytes reached this
    host), `user` (when the client saw them) or `mixed`. A chunk with the same time as the next one was read together
    with it, and its time is an upper bound; `merged_chunks` counts those. `client_lag_ns` is the longest time from a
    kernel arrival to its being seen. `first_answer_ns` is the first token that is no thought, after thoughts.

    `session` and `turn` count a user's sessions and the turns in one, from 0; `shared_prefix` is the group whose prefix
    the prompt begins with; `trace_line` is the request's line in the trace. Each is None where there is no such thing.
    """

    worker: int
    seq: int
    user: int
    server_id: str | None
    prompt_tokens: int
    max_tokens: int
    scheduled_ns: int | None
    sent_ns: int
    first_byte_ns: int | None
    chunk_ns: Sequence[int]
    chunk_tokens: Sequence[int] | None
    end_ns: int
    status: int | None
    finish_reason: str | None
    output_tokens: int
    output_tokens_source: str
    error_kind: str | None
    error: str | None
    arrival_clock: str | None = None
    merged_chunks: int | None = None
    client_lag_ns: int | None = None
    first_answer_ns: int | None = None
    session: int | None = None
    turn: int | None = None
    shared_prefix: int | None = None
    trace_line: int | None = None


REQUESTS = RecordType(
    "requests",
    1,
    RequestRow,
    [
        pa.int16(), pa.int64(), pa.int32(), pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64(),
        pa.list_(pa.int64()), pa.list_(pa.int32()), pa.int64(), pa.int16(), pa.string(), pa.int32(), pa.string(),
        pa.string(), pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int32(), pa.int32(),
        pa.int64(),
    ],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientRow:
    """The load process about itself, ten times a second.

    `lag_ns`: how late its event loop woke from this row's timer. `cpu_ns`: its CPU time so far. The counts are of
    requests: now in flight, completed so far, failed so far. `arrival_lag_ns` is the longest time from a kernel arrival
    to its being seen, since the row before; None where the kernel stamped nothing.
    """

    worker: int
    t_ns: int
    lag_ns: int
    cpu_ns: int
    in_flight: int
    completed: int
    failed: int
    arrival_lag_ns: int | None = None


CLIENT = RecordType(
    "client",
    1,
    ClientRow,
    [pa.int16(), pa.int64(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.int64()],
)


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A round trip to a load machine: by its clock it was `offset_ns` later than by ours at our `t_ns`.

    The machine's clock was read somewhere within the round trip, so the offset is wrong by at most `rtt_ns` / 2.
    """

    worker: int
    t_ns: int
    offset_ns: int
    rtt_ns: int


CLOCKS = RecordType("clocks", 1, ClockRow, [pa.int16(), pa.int64(), pa.int64(), pa.int64()])


@dataclass(frozen=True, slots=True)
class StepRow:
    """One turn of the executor loop, from the server's iteration log.

    `t_ns` is the log line's own time, at the end of the turn. `fetched_requests` and `fetched_requests_total` count the
    requests taken from the queue so far, by this rank and by all ranks. `new_requests` are those of this turn;
    `rpc_messages` and `rpc_requests` the submit messages received since the last line, and the requests in them;
    `gil_wait_ms` the loop's GIL wait in this turn, by its own account (each None where the server does not say).
    """

    t_ns: int
    iteration: int
    rank: int
    host_step_ms: float
    prev_device_step_ms: float | None
    scheduled_requests: int
    fetched_requests: int | None
    fetched_requests_total: int | None
    kv_cache_util: float | None
    ctx_requests: int | None
    ctx_tokens: int | None
    generation_tokens: int | None
    new_requests: int | None
    rpc_messages: int | None
    rpc_requests: int | None
    gil_wait_ms: float | None = None


STEPS = RecordType(
    "steps",
    1,
    StepRow,
    [
        pa.int64(), pa.int64(), pa.int16(), pa.float64(), pa.float64(), pa.int32(), pa.int32(), pa.int32(),
        pa.float64(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int32(), pa.int32(), pa.float64(),
    ],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostRow:
    """CPU, run-queue delay and memory of one process (`tid` None) or one thread; counters since its start.

    `role` is what the harness started it as (`rank0`, `proxy`, `server`, `load`, `observer`). `name` is the thread's
    Python name where the server told it, else the kernel's.
    """

    t_ns: int
    role: str
    pid: int
    tid: int | None
    name: str
    cpu_ns: int
    runqueue_ns: int
    rss_bytes: int | None


HOST = RecordType(
    "host",
    1,
    HostRow,
    [pa.int64(), pa.string(), pa.int32(), pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.int64()],
)


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One request as the server timed it: the truth that clients are checked against.

    `server_*` are the HTTP front end's times (None on the direct drive), the others rank 0's.
    """

    server_id: str
    server_arrival_ns: int | None
    arrival_ns: int
    first_scheduled_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    server_first_token_ns: int | None


SERVER = RecordType(
    "server",
    1,
    ServerRow,
    [pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int64()],
)


@dataclass(frozen=True, slots=True)
class GilRow:
    """One look at a process's GIL and its threads; thread ids are the kernel's.

    `holder` is None while nobody holds it (`locked` False), or when the holder is not known; `holder_sleeps` says that
    it is blocked, GIL in hand; `function` is its innermost Python function. `waiting` threads are blocked on the GIL's
    own locks, `runnable` ones were woken from there and have no core yet: both want the GIL. `running` ones are on a
    core, or queued for one, without it. Every thread that is present and not listed is blocked elsewhere. Threads that
    slept for long are looked at in every `cold_weight`-th row only: those listed in `cold` as well were found by such
    a rare look, and stand for that many looks.

    `clocked`, `cpu_clock_ns` and `queue_clock_ns` give, twice a second and for the threads that have run since, the
    kernel's exact time on a core and in its queue, since the thread's start.

    `switches` is the GIL's own count of hand-overs between threads. `missed` counts the looks that came due and were
    not taken, `cpu_ns` the sampler's own CPU time, both since it began. `appeared` and `names` say which threads were
    seen for the first time, or have a new name; `gone` which ended. `interval_us` is the interpreter's switch interval,
    from its own memory: how long a waiter waits before it asks the holder to let go.
    """

    t_ns: int
    locked: bool
    holder: int | None
    holder_sleeps: bool
    function: str | None
    waiting: Sequence[int]
    runnable: Sequence[int]
    running: Sequence[int]
    cold: Sequence[int]
    cold_weight: int
    clocked: Sequence[int]
    cpu_clock_ns: Sequence[int]
    queue_clock_ns: Sequence[int]
    switches: int
    missed: int
    cpu_ns: int
    appeared: Sequence[int]
    names: Sequence[str]
    gone: Sequence[int]
    interval_us: int | None = None


GIL = RecordType(
    "gil",
    1,
    GilRow,
    [
        pa.int64(), pa.bool_(), pa.int32(), pa.bool_(), pa.string(), pa.list_(pa.int32()), pa.list_(pa.int32()),
        pa.list_(pa.int32()), pa.list_(pa.int32()), pa.int16(), pa.list_(pa.int32()), pa.list_(pa.int64()),
        pa.list_(pa.int64()), pa.int64(), pa.int64(), pa.int64(),
        pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.int32()), pa.int64(),
    ],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GcRow:
    """One pause of the server's garbage collector, from its log: it began at `t_ns` and held the GIL for `pause_ns`.

    The reference stack logs rank 0's pauses of a millisecond and more.
    """

    t_ns: int
    pause_ns: int
    generation: int
    collected: int


GC = RecordType("gc", 1, GcRow, [pa.int64(), pa.int64(), pa.int16(), pa.int64()])
