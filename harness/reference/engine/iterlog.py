"""One log line per turn of the executor loop, in the newer of the original's two formats, plus rows for /metrics.

Four keys are added at the end of the line, which readers of the original's format pass over: `new_requests`,
`rpc_messages` and `rpc_requests` (submit messages, and requests in them, that arrived since the line before), and
`gil_wait` (the loop's GIL wait in the turn, by its own account). The timestamp has microseconds, so that a line can be
placed in time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.reference import log

KEPT_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Iteration:
    """One turn: times in ms; counts of requests and tokens."""

    iteration: int
    scheduled_requests: int
    kv_cache_util: float
    fetched_requests: int
    host_step_ms: float
    gil_wait_ms: float | None
    prev_device_step_ms: float | None
    ctx_requests: int
    ctx_tokens: int
    generation_tokens: int
    new_requests: int


class IterationLog:
    """Prints turns and keeps the newest for /metrics. `record` is for the executor loop, `drain` for any thread."""

    def __init__(self, submit_counters: Callable[[], tuple[int, int]]) -> None:
        self._submit_counters = submit_counters
        self._seen = (0, 0)
        self._rows: deque[Iteration] = deque(maxlen=KEPT_ROWS)
        self.count = 0

    def record(self, turn: Iteration) -> None:
        messages, requests = self._submit_counters()
        new_messages, new_rpc_requests = messages - self._seen[0], requests - self._seen[1]
        self._seen = (messages, requests)
        gil_wait = "N/A" if turn.gil_wait_ms is None else f"{turn.gil_wait_ms:.3f}ms"
        device = "N/A" if turn.prev_device_step_ms is None else f"{turn.prev_device_step_ms}ms"
        states = {
            "num_ctx_requests": turn.ctx_requests,
            "num_ctx_tokens": turn.ctx_tokens,
            "num_generation_tokens": turn.generation_tokens,
        }
        timestamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")  # noqa: DTZ005 - local time, as in the original
        log.info(
            f"[RANK 0] iter = {turn.iteration}, global_rank = 0, rank = 0, "
            f"num_scheduled_requests = {turn.scheduled_requests}, kv_cache_util = {turn.kv_cache_util:.3f}, "
            f"currank_total_requests = {turn.fetched_requests}/{turn.fetched_requests}, "
            f"host_step_time = {turn.host_step_ms}ms, prev_device_step_time = {device}, timestamp = {timestamp}, "
            f"states = {states}, new_requests = {turn.new_requests}, rpc_messages = {new_messages}, "
            f"rpc_requests = {new_rpc_requests}, gil_wait = {gil_wait}"
        )
        self.count += 1
        self._rows.append(turn)

    def drain(self) -> list[dict[str, Any]]:
        """Take the rows since the last call (at most the newest thousand), with the original's field names."""
        rows: list[dict[str, Any]] = []
        while self._rows:
            turn = self._rows.popleft()
            rows.append(
                {
                    "iter": turn.iteration,
                    "hostStepTimeMS": turn.host_step_ms,
                    "gilWaitTimeMS": turn.gil_wait_ms,
                    "prevDeviceStepTimeMS": turn.prev_device_step_ms,
                    "numActiveRequests": turn.scheduled_requests,
                    "numNewActiveRequests": turn.new_requests,
                    "kvCacheStats": {"usedFraction": turn.kv_cache_util},
                    "inflightBatchingStats": {
                        "numScheduledRequests": turn.scheduled_requests,
                        "numContextRequests": turn.ctx_requests,
                        "numCtxTokens": turn.ctx_tokens,
                        "numGenRequests": turn.generation_tokens,
                    },
                    "schedulerMode": "overlap",
                }
            )
        return rows
