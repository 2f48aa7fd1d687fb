"""The same host work as in host.py, vectorised: what is left when the per-request Python is taken out of the loop."""

from collections.abc import Sequence

import numpy as np

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import Ints, StepInputs
from harness.reference.engine.request import ActiveRequest, State
from harness.reference.engine.responses import final_response
from harness.reference.engine.scheduler import Batch
from harness.reference.types import Response, monotonic_s

FIRST_OUTPUT_COLUMNS = 64


class LeanHost:
    """State lies in arrays with one entry per slot; the request objects are touched at their start and end only."""

    def __init__(self, blocks: BlockManager, slots: int, *, max_num_tokens: int, stream_interval: int) -> None:
        self._blocks = blocks
        self._max_num_tokens = max_num_tokens
        self._stream_interval = stream_interval
        self._requests = np.full(slots, None, dtype=object)
        self._new: list[ActiveRequest] = []
        self._running = np.zeros(slots, dtype=bool)
        self._streaming = np.zeros(slots, dtype=bool)
        self._client_ids = np.zeros(slots, dtype=np.int64)
        self._request_ids = np.zeros(slots, dtype=np.int64)
        self._prompt_len = np.zeros(slots, dtype=np.int64)
        self._max_new = np.zeros(slots, dtype=np.int64)
        self._min_new = np.zeros(slots, dtype=np.int64)
        self._end_id = np.zeros(slots, dtype=np.int64)
        self._launched = np.zeros(slots, dtype=np.int64)
        self._generated = np.zeros(slots, dtype=np.int64)
        self._responded = np.zeros(slots, dtype=np.int64)
        self._room = np.zeros(slots, dtype=np.int64)
        self._last_token = np.zeros(slots, dtype=np.int64)
        self._output = np.zeros((slots, FIRST_OUTPUT_COLUMNS), dtype=np.int32)

    def admit(self, request: ActiveRequest) -> None:
        slot = request.slot
        self._requests[slot] = request
        self._streaming[slot] = request.streaming
        self._client_ids[slot] = request.client_id
        self._request_ids[slot] = request.request_id
        self._prompt_len[slot] = request.prompt_len
        self._max_new[slot] = request.max_new_tokens
        self._min_new[slot] = request.min_new_tokens
        self._end_id[slot] = request.end_id
        self._launched[slot] = self._generated[slot] = request.launched
        self._responded[slot] = request.responded_iter
        self._room[slot] = len(request.blocks) * self._blocks.tokens_per_block
        if request.is_generation:  # taken over, with one token
            self._last_token[slot] = self._output[slot, 0] = request.last_token()
            self._running[slot] = True
        else:
            self._new.append(request)

    def cancel(self, request: ActiveRequest) -> Response:
        request.finish("cancelled")
        self._hand_over(request)
        return final_response(request)

    def forget(self, request: ActiveRequest) -> None:
        self._running[request.slot] = False
        self._requests[request.slot] = None
        if request in self._new:
            self._new.remove(request)

    def schedule(self, active: Sequence[ActiveRequest]) -> Batch:  # noqa: ARG002 - the arrays are the active set
        context, self._new = self._within_budget(self._new)
        slots = np.flatnonzero(self._running & (self._launched < self._max_new))
        needed = self._prompt_len[slots] + self._launched[slots]
        for slot in slots[needed > self._room[slots]].tolist():
            self._blocks.extend(self._requests[slot], int(self._prompt_len[slot] + self._launched[slot]))
            self._room[slot] += self._blocks.tokens_per_block
        return Batch(context, self._requests[slots].tolist())

    def _within_budget(self, new: list[ActiveRequest]) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        if not self._max_num_tokens:
            return new, []
        total = 0
        for count, request in enumerate(new):
            total += request.prompt_len
            if count and total > self._max_num_tokens:
                return new[:count], new[count:]
        return new, []

    def _slots(self, batch: Batch) -> Ints:
        return np.array([request.slot for request in (*batch.context, *batch.generation)], dtype=np.int64)

    def prepare(self, batch: Batch) -> StepInputs:
        slots = self._slots(batch)
        new = len(batch.context)
        context_lens = [request.prompt_len for request in batch.context]
        old = slots[new:]
        past_seen = self._prompt_len[old] + self._launched[old] - 1
        prompts = [np.frombuffer(request.prompt, dtype=np.int32) for request in batch.context]
        ranges = [np.arange(length, dtype=np.int32) for length in context_lens]
        lengths = np.ones(len(slots), dtype=np.int32)
        lengths[:new] = context_lens
        cached = np.zeros(len(slots), dtype=np.int32)
        cached[new:] = past_seen
        inputs = StepInputs(
            input_ids=np.concatenate([*prompts, self._last_token[old].astype(np.int32)]),
            positions=np.concatenate([*ranges, past_seen.astype(np.int32)]),
            gather_ids=np.cumsum(lengths, dtype=np.int32) - 1,
            request_ids=self._request_ids[slots],
            sequence_lengths=lengths,
            cached_tokens=cached,
            block_table=self._blocks.gather(slots),
            slots=slots,
            indices=self._launched[slots],
            context_lens=context_lens,
        )
        self._launched[slots] += 1
        for request in batch.context:
            request.state = State.GENERATION
            self._running[request.slot] = True
        return inputs

    def update(self, batch: Batch, tokens: list[int], iteration: int) -> list[ActiveRequest]:
        slots = self._slots(batch)
        sampled = np.array(tokens, dtype=np.int64)
        alive = slots >= 0
        alive[alive] = self._running[slots[alive]]
        slots, sampled = slots[alive], sampled[alive]
        self._make_room(slots)
        self._output[slots, self._generated[slots]] = sampled
        self._last_token[slots] = sampled
        self._generated[slots] += 1
        generated = self._generated[slots]
        now = monotonic_s()
        for slot in slots[generated == 1].tolist():
            timing = self._requests[slot].timing
            timing.first_token_time, timing.first_iter = now, iteration
        stopped = (sampled == self._end_id[slots]) & (generated >= self._min_new[slots])
        finished: list[ActiveRequest] = []
        for slot, by_stop in zip(
            slots[stopped | (generated >= self._max_new[slots])].tolist(),
            stopped[stopped | (generated >= self._max_new[slots])].tolist(),
            strict=True,
        ):
            request: ActiveRequest = self._requests[slot]
            request.finish("stop" if by_stop else "length")
            request.timing.last_token_time, request.timing.last_iter = now, iteration
            finished.append(request)
        return finished

    def respond(self, batch: Batch) -> list[Response]:
        slots = self._slots(batch)
        slots = slots[slots >= 0]
        slots = slots[self._running[slots]]
        generated = self._generated[slots]
        fresh = generated - self._responded[slots]
        due = self._streaming[slots] & ((generated == 1) | (fresh >= self._stream_interval))
        responses: list[Response] = []
        for request in (request for request in self._requests[slots].tolist() if request.is_finished):
            due[slots == request.slot] = False
            self._hand_over(request)
            responses.append(final_response(request))
        plain = slots[due]
        begins, ends = self._responded[plain].tolist(), self._generated[plain].tolist()
        rows = self._output[plain].tolist() if self._stream_interval > 1 else None
        newest = self._last_token[plain].tolist()
        self._responded[plain] = self._generated[plain]
        for row, client_id in enumerate(self._client_ids[plain].tolist()):
            tokens = [newest[row]] if rows is None else rows[row][begins[row] : ends[row]]
            responses.append(Response(client_id, tokens, ends[row]))
        return responses

    def _hand_over(self, request: ActiveRequest) -> None:
        """Give the request object the tokens that no response has carried yet."""
        slot = request.slot
        generated = int(self._generated[slot])
        request.decoding_iter = generated
        request.pending_tokens = self._output[slot, int(self._responded[slot]) : generated].tolist()
        self._responded[slot] = generated

    def _make_room(self, slots: Ints) -> None:
        if len(slots) == 0:
            return
        need = int(self._generated[slots].max()) + 1
        columns = self._output.shape[1]
        if need > columns:
            wider = np.zeros((self._output.shape[0], max(need, 2 * columns)), dtype=np.int32)
            wider[:, :columns] = self._output
            self._output = wider
