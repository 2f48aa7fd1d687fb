"""What the harness tells a load process and what it hears back: one JSON object a line, over stdin and stdout.

To the process: the LoadSpec as the first line; then `{"do": "start"}`, `{"do": "steady", "start_ns", "end_ns"}` (end_ns
None with a request quota), `{"do": "users", "users", "ramp_s"}` (so many users from now on, changing evenly over that
time; `ramped` is said again when it is so), `{"do": "stop"}` (no new requests; drain). End of input means the harness
is gone: stop at once. From the process: `ready`, `ramped` (every user has a request in flight, or the schedule begins),
`progress` (once a second; its `failing` says in words that everything fails), `quota` (the wanted number of requests
has completed inside the window, or the trace is over) and `done` (drained, files closed).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PrefixSpec:
    """Shared prefixes: every session belongs to one of `groups`, and its prompts begin with that group's `tokens`."""

    groups: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Multi-turn sessions: `turns` requests each, whose prompts grow by the answer and by `turn_isl` new tokens.

    Both are in the notation of loadgen.workload.lengths (a whole number is exact here). A session ends early where the
    next prompt and its answer would exceed `max_context` tokens.
    """

    turns: int | str
    turn_isl: int | str
    max_context: int | None = None


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A tokenizer.json, for texts of exact length; `digest` (of loadgen.files) tells its contents apart."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """A trace to replay, instead of drawing requests: a file in one of the formats of loadgen.workload.traces.formats.

    `digest` (of loadgen.files) tells its contents apart. With the arrival `trace` its times are divided by
    `time_scale`. At most `turns` turns of a conversation are run (None: all).
    """

    path: str
    format: str
    digest: str
    time_scale: float = 1.0
    turns: int | None = None


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Synthetic prompts, drawn from a seed: lengths in tokens, shared prefixes, sessions. Or a trace.

    `isl` and `osl` are means, uniform within +-spread (a fraction), or texts in the notation of
    loadgen.workload.lengths. Where those name files, `lengths_digest` tells their contents apart. `isl` tokens come
    after those of a shared prefix. With a `tokenizer` texts have exactly as many tokens. With a trace `isl` says
    nothing, and `osl` holds for requests that do not say how much they want.
    """

    isl: int | str
    osl: int | str
    isl_spread: float = 0.1
    osl_spread: float = 0.1
    seed: int = 0
    lengths_digest: str | None = None
    prefix: PrefixSpec | None = None
    session: SessionSpec | None = None
    trace: TraceSpec | None = None
    tokenizer: TokenizerSpec | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "WorkloadSpec":
        """Rebuild one from its fields as JSON; absent ones take their defaults."""
        values = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        for name, kind in _PARTS.items():
            if values.get(name) is not None:
                values[name] = kind(**values[name])
        return cls(**values)


_PARTS: Mapping[str, type[Any]] = {
    "prefix": PrefixSpec,
    "session": SessionSpec,
    "trace": TraceSpec,
    "tokenizer": TokenizerSpec,
}


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One load process's share of a cell's load.

    This is process `worker` of `workers`, among which a trace is shared out. `target` is a base URL for the drive
    `http` and a unix socket's path for the drive `rpc`. `users` run in this process and are numbered from `first_user`;
    `spawn_rate` is in users/s. `most_users` is how many there may be later (None: no more). `quota` ends the window by
    count. With a `locustfile` they are its users, and `web_port` serves Locust's page on loopback.

    `arrival` is `closed` (each user sends when its last request is over and it has thought for `think_s`, constant or
    exponential by `think`), or an open loop: `constant`, `poisson` or `gamma` with `burstiness`, at `rate_rps` requests
    a second from this process, whose users are then the most that can be in flight. `arrival_phase` moves a constant
    schedule by that fraction of its gap. `abort_fraction` of the requests, drawn from the workload's seed, are cut
    after `abort_after_tokens` chunks. When everything fails for `give_up_s` (0: never), progress says so. `headers`
    and `extra_body` are added to every HTTP request (see loadgen.workload.bodies).
    """

    drive: str
    target: str
    endpoint: str
    model: str
    worker: int
    users: int
    first_user: int
    spawn_rate: float
    quota: int | None
    drain_s: float
    connect_timeout_s: float
    read_timeout_s: float
    workload: WorkloadSpec
    requests_path: str
    client_path: str
    arrival: str = "closed"
    rate_rps: float | None = None
    burstiness: float = 1.0
    arrival_phase: float = 0.0
    think_s: float = 0.0
    think: str = "constant"
    abort_fraction: float = 0.0
    abort_after_tokens: int = 8
    give_up_s: float = 10.0
    most_users: int | None = None
    locustfile: str | None = None
    web_port: int | None = None
    keep_alive: bool = True
    tls_verify: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "LoadSpec":
        document = json.loads(text)
        document["workload"] = WorkloadSpec.from_json(document["workload"])
        return cls(**document)


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """One line from a load process; `data` depends on `event`.

    ready, ramped, quota: `t_ns`. progress: `t_ns, users, in_flight, completed, failed, failing, first_tokens, ttft_ms`
    (how many first tokens came since the last progress, and at most 200 of their TTFTs, drawn evenly: for a live
    display alone, they enter no record). done: `t_ns, completed, failed, unfinished, aborted, unsent, cpu_s,
    wall_s` (`unsent`: due in open loop before the stop, and not sent by then).
    error: `message` (the process cannot go on).
    """

    event: str
    data: Mapping[str, Any]

    def to_line(self) -> str:
        return json.dumps({"event": self.event, **self.data}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "LoadEvent":
        document = json.loads(line)
        event = document.pop("event")
        return cls(event, document)
