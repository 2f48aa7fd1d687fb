"""The server's own times per request, kept for /perf_metrics: what clients' figures are checked against."""

from collections import deque
from typing import Any

from harness.reference.types import RequestTiming


class PerfLog:
    """The newest finished requests in the original's form; reading drains, as the original's does.

    One key is added, `response_id`: the id that an HTTP client saw, by which it can find its request here.
    Generation-only requests have their `ctx_request_id`. No block is ever reused here, so every prompt block is missed.
    Times are CLOCK_MONOTONIC seconds. `server_*` are the HTTP front end's (absent on the direct drive), the others
    rank 0's. Used on the main thread only.
    """

    def __init__(self, keep: int) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=keep)

    def add(
        self,
        client_id: int,
        timing: RequestTiming,
        *,
        response_id: str | None = None,
        server_arrival_s: float | None = None,
        server_first_token_s: float | None = None,
        ctx_request_id: int | None = None,
    ) -> None:
        record: dict[str, Any] = {"request_id": client_id, "response_id": response_id}
        if ctx_request_id is not None:
            record["ctx_request_id"] = ctx_request_id
        self._records.append(
            {
                **record,
                "perf_metrics": {
                    "first_iter": timing.first_iter,
                    "last_iter": timing.last_iter,
                    "timing_metrics": {
                        "server_arrival_time": server_arrival_s,
                        "arrival_time": timing.arrival_time,
                        "first_scheduled_time": timing.first_scheduled_time,
                        "first_token_time": timing.first_token_time,
                        "last_token_time": timing.last_token_time,
                        "server_first_token_time": server_first_token_s,
                    },
                    "kv_cache_metrics": {
                        "num_total_allocated_blocks": timing.blocks,
                        "num_new_allocated_blocks": timing.blocks,
                        "num_reused_blocks": 0,
                        "num_missed_blocks": timing.prompt_blocks,
                    },
                },
            }
        )

    def drain(self) -> list[dict[str, Any]]:
        records = list(self._records)
        self._records.clear()
        return records
