"""The executor loop: one turn after the other on one thread, in overlap order or in plain order."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.reference import log
from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import Step, sleep_exactly
from harness.reference.engine.devices import make_device
from harness.reference.engine.gilprobe import GilProbe
from harness.reference.engine.host import FaithfulHost, HostWork
from harness.reference.engine.intake import Intake, Queued
from harness.reference.engine.iterlog import Iteration
from harness.reference.engine.lean import LeanHost
from harness.reference.engine.request import ActiveRequest
from harness.reference.engine.scheduler import Batch
from harness.reference.engine.takeover import take_over
from harness.reference.ranks.router import RankLoad
from harness.reference.settings import ReferenceSettings
from harness.reference.types import EngineResponse, Response, monotonic_s

Emit = Callable[[list[EngineResponse]], None]
Record = Callable[[Iteration], None]


@dataclass(frozen=True, slots=True)
class _Launched:
    batch: Batch
    step: Step
    began_s: float


class ExecutorLoop:
    """Everything in here belongs to the loop's thread, but for the two counts and the blocks that others may look at.

    `emit` takes each turn's responses; `record` gets a line a turn (None: this rank writes no log).
    """

    def __init__(self, settings: ReferenceSettings, intake: Intake, emit: Emit, record: Record | None) -> None:
        self._settings = settings
        self._intake = intake
        self._emit = emit
        self._record = record
        self.blocks = BlockManager(
            settings.kv_cache_blocks, settings.tokens_per_block, settings.max_batch_size, settings.max_seq_len
        )
        self._host = make_host(settings, self.blocks)
        self._device = make_device(settings)
        self._waiting: deque[Queued] = deque()
        self._active: dict[int, ActiveRequest] = {}
        self._free_slots = list(range(settings.max_batch_size - 1, -1, -1))
        self._early: list[EngineResponse] = []
        self._fetched = 0
        self._completed = 0
        self._queue_latency_s = 0.0
        self._stopping = False
        self._probe: GilProbe | None = None

    @property
    def active_requests(self) -> int:
        return len(self._active)

    @property
    def waiting_requests(self) -> int:
        return len(self._waiting)

    def clients(self) -> list[int]:
        """Name the clients whose requests are under way: whom to tell when the loop has failed."""
        active = [request.client_id for request in self._active.values()]
        return active + [queued.request.client_id for queued in self._waiting]

    def run(self) -> None:
        """Turn until the intake says stop."""
        sleep_exactly()
        self._probe = GilProbe() if self._settings.gil_probe == "on" else None
        try:
            if self._settings.overlap == "on":
                self._executor_loop_overlap()
            else:
                self._executor_loop()
        finally:
            if self._probe is not None:
                self._probe.close()
            self._device.close()

    def _executor_loop_overlap(self) -> None:
        """Launch a step, then update and respond for the one before, while the device works."""
        previous: _Launched | None = None
        turn = _Turn()
        while True:
            new = self._fetch_new_requests(turn.iteration, idle=previous is None)
            if self._stopping:
                return
            if new == 0 and not self._active and previous is None:
                self._enqueue_responses([])
                turn.restart(self._probe)  # an idle turn is no step
                continue
            began_s = time.monotonic()
            batch = self._host.schedule(list(self._active.values()))
            launched = _Launched(batch, self._forward_step(batch), began_s) if batch.size else None
            self._process_batch(previous, turn.iteration)
            self._describe(turn, batch, previous, new)
            previous = launched

    def _executor_loop(self) -> None:
        """Launch a step, wait for it, update and respond: device and host take turns."""
        turn = _Turn()
        while True:
            new = self._fetch_new_requests(turn.iteration, idle=True)
            if self._stopping:
                return
            began_s = time.monotonic()
            batch = self._host.schedule(list(self._active.values()))
            if not batch.size:
                self._enqueue_responses([])
                turn.restart(self._probe)
                continue
            launched = _Launched(batch, self._forward_step(batch), began_s)
            self._process_batch(launched, turn.iteration)
            self._describe(turn, batch, launched, new)

    def _fetch_new_requests(self, iteration: int, *, idle: bool) -> int:
        """Take what has come (waiting for it only when there is nothing to run) and admit what fits."""
        block = idle and not self._active and not self._waiting and self._intake.idle()
        began = time.monotonic()
        taken = self._intake.take(self._load, block=block)
        if self._probe is not None and block:
            self._probe.waited(time.monotonic() - began)
        self._stopping = taken.stopping
        self._waiting.extend(taken.new)
        self._fetched += taken.arrived
        self._handle_cancelled(taken.cancelled)
        while self._waiting and self._free_slots:
            queued = self._waiting[0]
            request = ActiveRequest(queued.request_id, queued.request, self._free_slots[-1])
            if not self.blocks.admit(request):
                break
            self._waiting.popleft()
            self._free_slots.pop()
            timing = request.timing
            timing.first_scheduled_time = monotonic_s()
            timing.prompt_blocks = len(request.blocks)
            self._queue_latency_s += timing.first_scheduled_time - timing.arrival_time
            self._active[request.request_id] = request
            if request.is_generation_only:
                self._take_over(request, iteration)
            else:
                self._host.admit(request)
        return len(taken.new)

    def _take_over(self, request: ActiveRequest, iteration: int) -> None:
        """Begin after the prompt, which another server has read; its cache is taken to be there at once."""
        self._device.receive(request.slot, request.prompt)
        response = take_over(request, iteration)
        if response is not None:
            self._early.append(response)
        if request.is_finished:
            self._release(request)
        else:
            self._host.admit(request)

    def _load(self) -> RankLoad:
        """Say what this rank has under way; asked only where there are others to share with."""
        requests = len(self._active) + len(self._waiting)
        return RankLoad(requests, sum(request.num_tokens() for request in self._active.values()))

    def _forward_step(self, batch: Batch) -> Step:
        return self._device.launch(self._host.prepare(batch))

    def _process_batch(self, launched: _Launched | None, iteration: int) -> None:
        if launched is None:
            self._enqueue_responses([])
            return
        tokens = self._device.wait(launched.step)
        if self._probe is not None:
            self._probe.waited(launched.step.waited_s)
        finished = self._host.update(launched.batch, tokens, iteration)
        self._handle_responses(launched.batch)
        for request in finished:
            self._release(request)

    def _handle_responses(self, batch: Batch) -> None:
        responses = self._host.respond(batch)
        log.debug(f"{len(self._active)} active requests, responses: {responses}")
        self._enqueue_responses(responses)

    def _enqueue_responses(self, responses: Sequence[Response]) -> None:
        early, self._early = self._early, []
        passed_on = self._intake.exchange([*early, *responses])
        if passed_on:
            self._emit(passed_on)

    def _handle_cancelled(self, cancelled: Sequence[int]) -> None:
        """End requests from outside; their last responses go out with this turn's."""
        for request_id in cancelled:
            request = self._active.get(request_id)
            if request is not None and not request.is_finished:
                self._early.append(self._host.cancel(request))
                self._release(request)
                continue
            for queued in self._waiting:
                if queued.request_id == request_id:
                    self._waiting.remove(queued)
                    client_id = queued.request.client_id
                    self._early.append(Response(client_id, [], 0, is_final=True, finish_reason="cancelled"))
                    break

    def _release(self, request: ActiveRequest) -> None:
        self._host.forget(request)
        self.blocks.release(request)
        self._free_slots.append(request.slot)
        del self._active[request.request_id]
        request.slot = -1
        self._completed += 1

    def _describe(self, turn: "_Turn", batch: Batch, processed: _Launched | None, new: int) -> None:
        host_step_ms = turn.end()
        gil_wait_ms = None if self._probe is None else self._probe.turn()
        completed, self._completed = self._completed, 0
        queue_latency_s, self._queue_latency_s = self._queue_latency_s, 0.0
        if self._record is None:
            return
        self._record(
            Iteration(
                iteration=turn.iteration - 1,
                scheduled_requests=batch.size,
                active_requests=len(self._active),
                queued_requests=len(self._waiting),
                completed_requests=completed,
                free_blocks=self.blocks.free_blocks,
                total_blocks=self.blocks.total_blocks,
                fetched_requests=self._fetched,
                host_step_ms=host_step_ms,
                gil_wait_ms=gil_wait_ms,
                prev_device_step_ms=None if processed is None else processed.step.device_ms,
                iter_latency_ms=None if processed is None else (time.monotonic() - processed.began_s) * 1e3,
                queue_latency_ms=queue_latency_s * 1e3,
                ctx_requests=len(batch.context),
                ctx_tokens=batch.context_tokens,
                generation_tokens=len(batch.generation),
                new_requests=new,
            )
        )


class _Turn:
    """Counts the loop's turns and times them."""

    def __init__(self) -> None:
        self.iteration = 0
        self._began_s = time.monotonic()

    def restart(self, probe: GilProbe | None) -> None:
        self._began_s = time.monotonic()
        if probe is not None:
            probe.turn()

    def end(self) -> float:
        """Return the turn's wall time in ms; the next begins."""
        now = time.monotonic()
        elapsed_ms = (now - self._began_s) * 1e3
        self._began_s = now
        self.iteration += 1
        return elapsed_ms


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
