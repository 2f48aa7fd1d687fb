"""The host work of a step, request by request, in the kinds and the order of the original's Python executor loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import StepInputs
from harness.reference.engine.request import ActiveRequest
from harness.reference.types import Response, monotonic_s


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one step: new ones (their prompts are read in this step) first, then the decoding ones."""

    context: Sequence[ActiveRequest]
    generation: Sequence[ActiveRequest]

    @property
    def size(self) -> int:
        return len(self.context) + len(self.generation)

    @property
    def context_tokens(self) -> int:
        return sum(request.prompt_len for request in self.context)


class HostWork(Protocol):
    """The work that the executor loop does on the CPU for the batch of a step.

    `update` returns the requests that finished in it. The loop calls admit once per request, then schedule, prepare,
    update and respond once per step, cancel for a request that ends from outside (its answer is the last response),
    and forget when it has released a request.
    """

    def admit(self, request: ActiveRequest) -> None: ...

    def cancel(self, request: ActiveRequest) -> Response: ...

    def forget(self, request: ActiveRequest) -> None: ...

    def schedule(self, active: Sequence[ActiveRequest]) -> Batch: ...

    def prepare(self, batch: Batch) -> StepInputs: ...

    def update(self, batch: Batch, tokens: list[int], iteration: int) -> list[ActiveRequest]: ...

    def respond(self, batch: Batch) -> list[Response]: ...


def final_response(request: ActiveRequest) -> Response:
    """Build the response that ends a request; it carries the timing when that was asked for."""
    return Response(
        client_id=request.client_id,
        token_ids=request.take_pending(),
        decoding_iter=request.decoding_iter,
        is_final=True,
        finish_reason=request.finish_reason,
        timing=request.timing if request.wants_timing else None,
    )


class FaithfulHost:
    """Python objects and Python loops, one request at a time."""

    def __init__(self, blocks: BlockManager, *, max_num_tokens: int, stream_interval: int) -> None:
        self._blocks = blocks
        self._max_num_tokens = max_num_tokens
        self._stream_interval = stream_interval

    def admit(self, request: ActiveRequest) -> None:
        """Nothing to do: the objects themselves are the state."""

    def cancel(self, request: ActiveRequest) -> Response:
        request.finish_reason = "cancelled"
        return final_response(request)

    def forget(self, request: ActiveRequest) -> None:
        """Nothing to do: the objects themselves are the state."""

    def schedule(self, active: Sequence[ActiveRequest]) -> Batch:
        """Capacity and micro-batch scheduling: room for every sequence's next token, prompts within the budget."""
        context: list[ActiveRequest] = []
        generation: list[ActiveRequest] = []
        budget = self._max_num_tokens
        scheduled_tokens = 0
        for request in active:
            if request.is_finished:
                continue
            if request.is_context:
                if budget and scheduled_tokens + request.prompt_len > budget and (context or generation):
                    continue
                scheduled_tokens += request.prompt_len
                context.append(request)
            elif self._has_step_left(request):
                scheduled_tokens += 1
                generation.append(request)
        for request in generation:
            self._blocks.extend(request, request.prompt_len + request.launched)
        return Batch(context, generation)

    def _has_step_left(self, request: ActiveRequest) -> bool:
        """Say whether a further step can still be of use: not when the last allowed token is already under way."""
        return request.launched < request.max_new_tokens

    def prepare(self, batch: Batch) -> StepInputs:
        """Gather token ids, positions, lengths, slots and block tables into arrays."""
        input_ids: list[int] = []
        position_ids: list[int] = []
        gather_ids: list[int] = []
        request_ids: list[int] = []
        sequence_lengths: list[int] = []
        cached_tokens: list[int] = []
        prompt_lengths: list[int] = []
        slots: list[int] = []
        indices: list[int] = []
        for request in batch.context:
            input_ids.extend(request.prompt)
            position_ids.extend(range(request.prompt_len))
            gather_ids.append(len(input_ids) - 1)
            request_ids.append(request.request_id)
            sequence_lengths.append(request.prompt_len)
            cached_tokens.append(0)
            prompt_lengths.append(request.prompt_len)
            slots.append(request.slot)
            indices.append(request.launched)
            request.is_context = False
            request.launched += 1
        for request in batch.generation:
            past_seen = request.prompt_len + request.launched - 1
            input_ids.append(request.last_token())
            position_ids.append(past_seen)
            gather_ids.append(len(input_ids) - 1)
            request_ids.append(request.request_id)
            sequence_lengths.append(1)
            cached_tokens.append(past_seen)
            prompt_lengths.append(request.prompt_len)
            slots.append(request.slot)
            indices.append(request.launched)
            request.launched += 1
        return StepInputs(
            input_ids=np.array(input_ids, dtype=np.int32),
            positions=np.array(position_ids, dtype=np.int32),
            gather_ids=np.array(gather_ids, dtype=np.int32),
            request_ids=np.array(request_ids, dtype=np.int64),
            sequence_lengths=np.array(sequence_lengths, dtype=np.int32),
            cached_tokens=np.array(cached_tokens, dtype=np.int32),
            block_table=self._blocks.gather(slots),
            slots=np.array(slots, dtype=np.int64),
            indices=np.array(indices, dtype=np.int64),
            context_lens=prompt_lengths[: len(batch.context)],
        )

    def update(self, batch: Batch, tokens: list[int], iteration: int) -> list[ActiveRequest]:
        """Sampler update: append each token and check the stop criteria."""
        finished: list[ActiveRequest] = []
        now = monotonic_s()
        position = 0
        for group in (batch.context, batch.generation):
            for request in group:
                token = tokens[position]
                position += 1
                if request.is_finished:  # it ended while this step was under way; the step's token is void
                    continue
                total = request.add_token(token)
                self._note_times(request, now, iteration)
                if self._meets_stop_criteria(request, token, total):
                    finished.append(request)
        return finished

    def _note_times(self, request: ActiveRequest, now: float, iteration: int) -> None:
        timing = request.timing
        if request.decoding_iter == 1:
            timing.first_token_time = now
            timing.first_iter = iteration
        timing.last_token_time = now
        timing.last_iter = iteration

    def _meets_stop_criteria(self, request: ActiveRequest, token: int, total: int) -> bool:
        generated = total - request.prompt_len
        if (token == request.end_id and generated >= request.min_new_tokens) or (
            request.stop_token_ids and token in request.stop_token_ids and generated >= request.min_new_tokens
        ):
            request.finish_reason = "stop"
        elif generated >= request.max_new_tokens:
            request.finish_reason = "length"
        return request.finish_reason is not None

    def respond(self, batch: Batch) -> list[Response]:
        """Create the step's response list."""
        responses: list[Response] = []
        for group in (batch.context, batch.generation):
            for request in group:
                response = self._create_response(request)
                if response is not None:
                    responses.append(response)
        return responses

    def _create_response(self, request: ActiveRequest) -> Response | None:
        if request.slot < 0 or not request.should_respond(self._stream_interval):
            return None
        if request.is_finished:
            return final_response(request)
        return Response(
            client_id=request.client_id, token_ids=request.take_pending(), decoding_iter=request.decoding_iter
        )
