"""Rank 0's executor: the request queue that other threads fill, the executor loop, and the pending responses."""

import enum
import gc
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from harness.reference import log
from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import EmulatedDevice, EmulatedStep
from harness.reference.engine.host import FaithfulHost, HostWork
from harness.reference.engine.iterlog import Iteration, IterationLog
from harness.reference.engine.lean import LeanHost
from harness.reference.engine.request import ActiveRequest, EngineRequest
from harness.reference.engine.scheduler import Batch
from harness.reference.settings import ReferenceSettings
from harness.reference.types import AnyResponse, ErrorResponse, Response, monotonic_s


class RequestRefused(ValueError):  # noqa: N818 - it names what happened
    """The engine cannot ever run this request; the message says why."""


@dataclass(frozen=True, slots=True)
class _Queued:
    request_id: int
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class _Launched:
    batch: Batch
    step: EmulatedStep


@dataclass(frozen=True, slots=True)
class _Cancel:
    """Comes through the request queue, so that it never overtakes the request that it ends."""

    request_id: int


class _Signal(enum.Enum):
    """What else may come through the request queue."""

    SHUTDOWN = "shutdown"


class Executor:
    """Runs requests in steps on one thread, `executor_loop`; every other method may be called from any thread.

    Overlap order: launch step i, then wait for step i-1, update its requests and respond for them, so that host work
    runs while the device does.
    """

    def __init__(
        self,
        settings: ReferenceSettings,
        submit_counters: Callable[[], tuple[int, int]],
        on_failure: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._on_failure = on_failure
        self._blocks = BlockManager(
            settings.kv_cache_blocks, settings.tokens_per_block, settings.max_batch_size, settings.max_seq_len
        )
        self._host = make_host(settings, self._blocks)
        self._device = EmulatedDevice(
            settings.max_batch_size,
            base_ms=settings.device_base_ms,
            per_request_us=settings.device_per_request_us,
            per_prompt_token_us=settings.device_per_prompt_token_us,
            calls=settings.device_calls,
        )
        self._iteration_log = IterationLog(submit_counters)
        self._enqueue_lock = threading.Lock()
        self._queue: queue.Queue[_Queued | _Cancel | _Signal] = queue.Queue()
        self._next_request_id = 1
        self._response_ready = threading.Condition()
        self._responses: list[AnyResponse] = []
        self._waiting: deque[_Queued] = deque()
        self._active: dict[int, ActiveRequest] = {}
        self._free_slots = list(range(settings.max_batch_size - 1, -1, -1))
        self._fetched = 0
        self._stopping = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._event_loop, name="executor_loop", daemon=True)

    # called from other threads

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        self._stopping = True
        self._queue.put(_Signal.SHUTDOWN)
        with self._response_ready:
            self._response_ready.notify_all()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._device.close()

    def enqueue_request(self, request: EngineRequest) -> int:
        """Queue a request and return its id. Raises RequestRefused for one that can never run."""
        self._check(request)
        with self._enqueue_lock:
            request_id = self._next_request_id
            self._next_request_id += 1
            self._queue.put(_Queued(request_id, request))
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a request at the next turn of the loop, wherever it is; an unknown id is ignored."""
        self._queue.put(_Cancel(request_id))

    def await_responses(self, timeout_s: float) -> list[AnyResponse]:
        """Wait until there are responses and take all of them; an empty list after `timeout_s` without any."""
        with self._response_ready:
            if not self._responses:
                self._response_ready.wait(timeout_s)
            taken, self._responses = self._responses, []
        return taken

    def post(self, response: AnyResponse) -> None:
        """Put a response that no step produced on its way: a refusal, or the end of what never began."""
        with self._response_ready:
            self._responses.append(response)
            self._response_ready.notify_all()

    @property
    def active_requests(self) -> int:
        return len(self._active)

    @property
    def queued_requests(self) -> int:
        return self._queue.qsize() + len(self._waiting)

    @property
    def blocks(self) -> BlockManager:
        return self._blocks

    @property
    def iterations(self) -> IterationLog:
        return self._iteration_log

    def _check(self, request: EngineRequest) -> None:
        if self.failure is not None:
            raise RequestRefused(f"the executor loop failed: {self.failure!r}")
        length = len(request.prompt)
        wanted = request.sampling.max_tokens
        if length == 0:
            raise RequestRefused("the prompt has no tokens")
        if wanted < 1:
            raise RequestRefused(f"max_tokens is {wanted}; it must be at least 1")
        if length + wanted > self._settings.max_seq_len:
            raise RequestRefused(
                f"prompt ({length} tokens) and max_tokens ({wanted}) exceed max_seq_len {self._settings.max_seq_len}"
            )
        if self._blocks.blocks_for(length + wanted + 1) > self._blocks.total_blocks:
            raise RequestRefused(f"the KV cache has no room for {length + wanted} tokens")
        if self._settings.max_num_tokens and length > self._settings.max_num_tokens:
            raise RequestRefused(f"the prompt has {length} tokens; max_num_tokens is {self._settings.max_num_tokens}")

    # the executor loop

    def _event_loop(self) -> None:
        before = gc.get_threshold()
        gc.set_threshold(self._settings.gc_gen0_threshold, *before[1:])
        try:
            self._executor_loop_overlap()
        except BaseException as error:  # noqa: BLE001 - border of the thread: every request is told
            self.failure = error
            log.error(f"executor loop failed: {error!r}")
            self._fail_all(f"the executor loop failed: {error!r}")
            self._on_failure()
        finally:
            gc.set_threshold(*before)

    def _executor_loop_overlap(self) -> None:
        previous: _Launched | None = None
        iteration = 0
        turn_began = time.monotonic()
        while True:
            new = self._fetch_new_requests(idle=previous is None)
            if self._stopping:
                return
            if new == 0 and not self._active and previous is None:
                turn_began = time.monotonic()  # an idle turn is no step
                continue
            batch = self._host.schedule(list(self._active.values()))
            launched: _Launched | None = None
            if batch.size:
                launched = _Launched(batch, self._forward_step(batch))
            if previous is not None:
                self._process_previous_batch(previous, iteration)
            now = time.monotonic()
            self._iteration_log.record(self._describe(iteration, batch, previous, new, (now - turn_began) * 1e3))
            turn_began = now
            previous = launched
            iteration += 1

    def _fetch_new_requests(self, *, idle: bool) -> int:
        """Drain the queue (blocking only when there is nothing to run) and admit what fits."""
        new = 0
        cancelled: list[int] = []
        block = idle and not self._active and not self._waiting
        while True:
            try:
                item = self._queue.get(block=block)
            except queue.Empty:
                break
            block = False
            if item is _Signal.SHUTDOWN:
                self._stopping = True
                return new
            if isinstance(item, _Queued):
                self._waiting.append(item)
                new += 1
            elif isinstance(item, _Cancel):
                cancelled.append(item.request_id)
        self._fetched += new
        self._handle_cancelled(cancelled)
        while self._waiting and self._free_slots:
            queued = self._waiting[0]
            request = ActiveRequest(queued.request_id, queued.request, self._free_slots[-1])
            if not self._blocks.admit(request):
                break
            self._waiting.popleft()
            self._free_slots.pop()
            request.timing.first_scheduled_time = monotonic_s()
            self._active[request.request_id] = request
            self._host.admit(request)
        return new

    def _forward_step(self, batch: Batch) -> EmulatedStep:
        return self._device.launch(self._host.prepare(batch))

    def _process_previous_batch(self, previous: _Launched, iteration: int) -> None:
        tokens = self._device.wait(previous.step)
        finished = self._host.update(previous.batch, tokens, iteration)
        self._handle_responses(previous.batch)
        for request in finished:
            self._release(request)

    def _handle_responses(self, batch: Batch) -> None:
        responses = self._host.respond(batch)
        log.debug(f"{len(self._active)} active requests, responses: {responses}")
        self._enqueue_responses(responses)

    def _enqueue_responses(self, responses: list[Response]) -> None:
        if not responses:
            return
        with self._response_ready:
            self._responses.extend(responses)
            self._response_ready.notify_all()

    def _handle_cancelled(self, cancelled: list[int]) -> None:
        ended: list[Response] = []
        for request_id in cancelled:
            request = self._active.get(request_id)
            if request is not None and not request.is_finished:
                ended.append(self._host.cancel(request))
                self._release(request)
                continue
            for queued in self._waiting:
                if queued.request_id == request_id:
                    self._waiting.remove(queued)
                    ended.append(Response(queued.request.client_id, [], 0, is_final=True, finish_reason="cancelled"))
                    break
        self._enqueue_responses(ended)

    def _release(self, request: ActiveRequest) -> None:
        self._host.forget(request)
        self._blocks.release(request)
        self._free_slots.append(request.slot)
        del self._active[request.request_id]
        request.slot = -1

    def _fail_all(self, reason: str) -> None:
        clients = [request.client_id for request in self._active.values()]
        clients += [queued.request.client_id for queued in self._waiting]
        for client_id in clients:
            self.post(ErrorResponse(client_id, reason))

    def _describe(
        self, iteration: int, batch: Batch, previous: _Launched | None, new: int, host_step_ms: float
    ) -> Iteration:
        return Iteration(
            iteration=iteration,
            scheduled_requests=batch.size,
            kv_cache_util=1.0 - self._blocks.free_blocks / self._blocks.total_blocks,
            fetched_requests=self._fetched,
            host_step_ms=host_step_ms,
            prev_device_step_ms=None if previous is None else previous.step.device_ms,
            ctx_requests=len(batch.context),
            ctx_tokens=batch.context_tokens,
            generation_tokens=len(batch.generation),
            new_requests=new,
        )


def make_host(settings: ReferenceSettings, blocks: BlockManager) -> HostWork:
    if settings.host_work == "lean":
        return LeanHost(
            blocks,
            settings.max_batch_size,
            max_num_tokens=settings.max_num_tokens,
            stream_interval=settings.stream_interval,
        )
    return FaithfulHost(
        blocks,
        max_requests=settings.max_batch_size,
        max_num_tokens=settings.max_num_tokens,
        max_seq_len=settings.max_seq_len,
        stream_interval=settings.stream_interval,
    )
