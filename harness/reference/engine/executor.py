"""Rank 0's executor as its other threads see it: a request queue, cancels, pending responses."""

import queue
import threading
from collections.abc import Callable, Sequence

from harness.reference import log
from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.collector import collector
from harness.reference.engine.intake import Cancel, Intake, Item, LocalIntake, Queued, Signal
from harness.reference.engine.iterlog import IterationLog
from harness.reference.engine.loop import ExecutorLoop
from harness.reference.engine.request import EngineRequest
from harness.reference.ranks.group import RankGroup
from harness.reference.settings import ReferenceSettings
from harness.reference.types import AnyResponse, ErrorResponse


class RequestRefused(ValueError):  # noqa: N818 - it names what happened
    """The engine cannot ever run this request; the message says why."""


class Executor:
    """Runs requests in steps on one thread, `executor_loop`; every method may be called from any thread."""

    def __init__(
        self,
        settings: ReferenceSettings,
        submit_counters: Callable[[], tuple[int, int]],
        on_failure: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._on_failure = on_failure
        self._queue: queue.Queue[Item] = queue.Queue()
        self._group: RankGroup | None = None
        intake: Intake = LocalIntake(self._queue)
        if settings.ranks > 1:
            intake = self._group = RankGroup(settings, LocalIntake(self._queue))
        self.iterations = IterationLog(settings, submit_counters)
        self._loop = ExecutorLoop(settings, intake, self.post, self.iterations.record)
        self._enqueue_lock = threading.Lock()
        self._next_request_id = 1
        self._response_ready = threading.Condition()
        self._responses: list[AnyResponse] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._event_loop, name="executor_loop", daemon=True)

    def start(self) -> None:
        if self._group is not None:
            self._group.start()
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        self._queue.put(Signal.SHUTDOWN)
        with self._response_ready:
            self._response_ready.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._group is not None:
            self._group.stop()

    def enqueue_request(self, request: EngineRequest) -> int:
        """Queue a request and return its id. Raises RequestRefused for one that can never run."""
        self._check(request)
        with self._enqueue_lock:
            request_id = self._next_request_id
            self._next_request_id += 1
            self._queue.put(Queued(request_id, request))
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a request at the next turn of the loop, wherever it is; an unknown id is ignored."""
        self._queue.put(Cancel(request_id))

    def post(self, responses: Sequence[AnyResponse]) -> None:
        """Put responses that no step produced on their way: refusals, the end of what never began, written answers."""
        with self._response_ready:
            self._responses.extend(responses)
            self._response_ready.notify_all()

    def await_responses(self, timeout_s: float) -> list[AnyResponse]:
        """Wait until there are responses and take all of them; an empty list after `timeout_s` without any."""
        with self._response_ready:
            if not self._responses:
                self._response_ready.wait(timeout_s)
            taken, self._responses = self._responses, []
        return taken

    @property
    def active_requests(self) -> int:
        return self._loop.active_requests

    @property
    def queued_requests(self) -> int:
        return self._queue.qsize() + self._loop.waiting_requests

    @property
    def blocks(self) -> BlockManager:
        return self._loop.blocks

    @property
    def rank_pids(self) -> dict[str, int]:
        return {} if self._group is None else self._group.pids

    def _check(self, request: EngineRequest) -> None:
        if self.failure is not None:
            raise RequestRefused(f"the executor loop failed: {self.failure!r}")
        length = len(request.prompt)
        wanted = request.sampling.max_tokens
        blocks = self._loop.blocks
        if request.context_phase is not None and self._settings.device != "emulated":
            raise RequestRefused(f"generation_only: device {self._settings.device} has nobody to receive a cache from")
        if length == 0:
            raise RequestRefused("the prompt has no tokens")
        if wanted < 1:
            raise RequestRefused(f"max_tokens is {wanted}; it must be at least 1")
        if length + wanted > self._settings.max_seq_len:
            raise RequestRefused(
                f"prompt ({length} tokens) and max_tokens ({wanted}) exceed max_seq_len {self._settings.max_seq_len}"
            )
        if blocks.blocks_for(length + wanted + 1) > blocks.total_blocks:
            raise RequestRefused(f"the KV cache has no room for {length + wanted} tokens")
        if self._settings.max_num_tokens and length > self._settings.max_num_tokens:
            raise RequestRefused(f"the prompt has {length} tokens; max_num_tokens is {self._settings.max_num_tokens}")

    def _event_loop(self) -> None:
        try:
            with collector(self._settings):
                self._loop.run()
        except BaseException as error:  # noqa: BLE001 - border of the thread: every request is told
            self.failure = error
            log.error(f"executor loop failed: {error!r}")
            clients = set(self._loop.clients()) | (set() if self._group is None else self._group.clients())
            self.post([ErrorResponse(client, f"the executor loop failed: {error!r}", 500) for client in clients])
            self._on_failure()
