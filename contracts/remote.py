"""What the harness, its gateway and the load machines tell each other, beside contracts.load's own lines.

Gateway and workers exchange Locust's messages (a type, data, the sender's id) over an encrypted channel
(loadgen.remote.wire). To a worker: `ping` {id}, `open` {run, spec}, `line` {run, line}, `close` {run}, `refused`
{why}, `bye` {why}. From it: `hello` {protocol, host}, `pong` {id, t_ns}, `line` {run, line}, `records` {run, kind,
data}, `closed` {run, status}.

Harness and gateway exchange one JSON object a line over the gateway's stdin and stdout. To it: a GatewaySpec, then
`{"do": "open", "worker", "run", "spec", "paths"}`, `{"do": "line", "worker", "run", "line"}`, `{"do": "close",
"worker", "run"}`; the end of input says goodbye to all. From it: `bound` (port), `joined` (worker, host), `lost`
(worker, why), `clock` (worker and a ClockRow's fields), `line` (worker, run, line), `closed` (worker, run, status),
`error` (message).
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

PROTOCOL = 1
SECRET_NAME = "LOADGEN_WORKER_SECRET"  # noqa: S105 - a variable's name
LEAST_SECRET = 16
DEFAULT_PORT = 5557
KINDS = ("requests", "client", "log")
"""The files that a worker sends as they grow; where they go is the harness's to say."""


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """Where the gateway listens, and how many workers it takes. The secret comes in the environment."""

    bind: str
    port: int
    workers: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "GatewaySpec":
        document: dict[str, Any] = json.loads(text)
        return cls(**document)
