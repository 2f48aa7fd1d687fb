"""One log line per turn of the executor loop, and rows for /metrics: in the original's formats, or in ours.

`extended` is the newer of the original's two formats with four keys at the end, which readers of the original's pass
over: `new_requests`, `rpc_messages` and `rpc_requests` (submit messages, and requests in them, that arrived since the
line before), and `gil_wait` (the loop's GIL wait in the turn, by its own account). Its timestamp has microseconds, so
that a line can be placed in time; the original's has seconds.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.reference import log
from harness.reference.settings import ReferenceSettings

KEPT_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Iteration:
    """One turn: times in ms; counts of requests, tokens and blocks.

    `iter_latency_ms` is of the batch that the turn finished, from its scheduling to its responses: about two turns in
    overlap order. `queue_latency_ms` is what the turn's newly admitted requests had waited, in sum.
    """

    iteration: int
    scheduled_requests: int
    active_requests: int
    queued_requests: int
    completed_requests: int
    free_blocks: int
    total_blocks: int
    fetched_requests: int
    host_step_ms: float
    gil_wait_ms: float | None
    prev_device_step_ms: float | None
    iter_latency_ms: float | None
    queue_latency_ms: float
    ctx_requests: int
    ctx_tokens: int
    generation_tokens: int
    new_requests: int

    @property
    def kv_cache_util(self) -> float:
        return 1.0 - self.free_blocks / self.total_blocks


class IterationLog:
    """Prints turns and keeps the newest for /metrics. `record` is for the executor loop, `drain` for any thread."""

    def __init__(self, settings: ReferenceSettings, submit_counters: Callable[[], tuple[int, int]]) -> None:
        self._settings = settings
        self._submit_counters = submit_counters
        self._seen = (0, 0)
        self._rows: deque[tuple[datetime, Iteration]] = deque(maxlen=KEPT_ROWS)
        self.count = 0

    def record(self, turn: Iteration) -> None:
        now = datetime.now()  # noqa: DTZ005 - local time, as in the original
        log.info(self._line(turn, now))
        self.count += 1
        self._rows.append((now, turn))

    def _line(self, turn: Iteration, now: datetime) -> str:
        device = "N/A" if turn.prev_device_step_ms is None else f"{turn.prev_device_step_ms}ms"
        states = {
            "num_ctx_requests": turn.ctx_requests,
            "num_ctx_tokens": turn.ctx_tokens,
            "num_generation_tokens": turn.generation_tokens,
        }
        head = f"[RANK 0] iter = {turn.iteration}, global_rank = 0, rank = 0, "
        scheduled = f"num_scheduled_requests = {turn.scheduled_requests}, kv_cache_util = {turn.kv_cache_util:.3f}, "
        fetched = f"currank_total_requests = {turn.fetched_requests}/{turn.fetched_requests}, "
        steps = f"host_step_time = {turn.host_step_ms}ms, prev_device_step_time = {device}, "
        if self._settings.iter_log == "original-rc15":
            counted = f"num_scheduled_requests: {turn.scheduled_requests}, states = {states}"
            return f"{head}{fetched}{steps}timestamp = {now:%Y-%m-%d %H:%M:%S}, {counted}"
        if self._settings.iter_log == "original":
            return f"{head}{scheduled}{fetched}{steps}timestamp = {now:%Y-%m-%d %H:%M:%S}, states = {states}"
        stamp = f"timestamp = {now:%Y-%m-%d %H:%M:%S.%f}, states = {states}, "
        return f"{head}{scheduled}{fetched}{steps}{stamp}{self._added(turn)}"

    def _added(self, turn: Iteration) -> str:
        messages, requests = self._submit_counters()
        new_messages, new_requests = messages - self._seen[0], requests - self._seen[1]
        self._seen = (messages, requests)
        gil_wait = "N/A" if turn.gil_wait_ms is None else f"{turn.gil_wait_ms:.3f}ms"
        return (
            f"new_requests = {turn.new_requests}, rpc_messages = {new_messages}, rpc_requests = {new_requests}, "
            f"gil_wait = {gil_wait}"
        )

    def drain(self) -> list[dict[str, Any]]:
        """Take the rows since the last call (at most the newest thousand), with the original's field names.

        What the original counts by walking the batch again (tokens in the cache, queued tokens) is left out, and so is
        what there is none of here: GPU memory, paused requests, drafts. `gilWaitTimeMS` is ours.
        """
        rows: list[dict[str, Any]] = []
        while self._rows:
            now, turn = self._rows.popleft()
            rows.append(self._row(now, turn))
        return rows

    def _row(self, now: datetime, turn: Iteration) -> dict[str, Any]:
        row: dict[str, Any] = {
            "iter": turn.iteration,
            "timestamp": f"{now:%m-%d-%Y %H:%M:%S.%f}",
            "attentionDpRank": 0,
            "schedulerMode": "overlap" if self._settings.overlap == "on" else "non_overlap",
            "hostStepTimeMS": turn.host_step_ms,
            "newActiveRequestsQueueLatencyMS": turn.queue_latency_ms,
            "numActiveRequests": turn.active_requests,
            "numNewActiveRequests": turn.new_requests,
            "numQueuedRequests": turn.queued_requests,
            "numCompletedRequests": turn.completed_requests,
            "maxNumActiveRequests": self._settings.max_batch_size,
            "kvCacheStats": {
                "maxNumBlocks": turn.total_blocks,
                "freeNumBlocks": turn.free_blocks,
                "usedNumBlocks": turn.total_blocks - turn.free_blocks,
                "tokensPerBlock": self._settings.tokens_per_block,
            },
            "inflightBatchingStats": {
                "numScheduledRequests": turn.scheduled_requests,
                "numContextRequests": turn.ctx_requests,
                "numCtxTokens": turn.ctx_tokens,
                "numGenRequests": turn.generation_tokens,
            },
        }
        known_only_sometimes = {
            "iterLatencyMS": turn.iter_latency_ms,
            "prevDeviceStepTimeMS": turn.prev_device_step_ms,
            "gilWaitTimeMS": turn.gil_wait_ms,
        }
        return row | {name: value for name, value in known_only_sometimes.items() if value is not None}
