"""The server's own times per request, kept for /perf_metrics: what clients' figures are checked against."""

from collections import deque
from typing import Any

from harness.reference.types import RequestTiming


class PerfLog:
    """The newest finished requests in the original's form; reading drains, as the original's does.

    One key is added, `response_id`: the id that an HTTP client saw, by which it can find its request here.
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
    ) -> None:
        self._records.append(
            {
                "request_id": client_id,
                "response_id": response_id,
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
                },
            }
        )

    def drain(self) -> list[dict[str, Any]]:
        records = list(self._records)
        self._records.clear()
        return records
