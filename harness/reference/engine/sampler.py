"""The sampler's host side: per request, choose and group the sampling strategies; later append tokens and check stops.

The device samples greedily whatever the strategy; what is re-created is the work of sorting the requests out.
"""

from dataclasses import dataclass

import numpy as np

from harness.reference.engine.request import ActiveRequest
from harness.reference.engine.scheduler import Batch
from harness.reference.types import monotonic_s

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Strategy = tuple[str, float, int, float]
GREEDY: Strategy = ("greedy", 0.0, 1, 1.0)


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """What the device's sampler is told: for each strategy the batch positions that use it, then per request.

    `offsets` is where a request's logits begin when each has a row per step and beam; `forbid_end` names the positions
    where a minimum length still forbids the end token; `seeds` the random seeds of those that brought one.
    """

    groups: dict[Strategy, Positions]
    slots: Positions
    steps: Positions
    beams: Positions
    generated: Positions
    offsets: Positions
    wants_logprobs: Positions
    forbid_end: list[int]
    seeds: dict[int, int]


class Sampler:
    """One per executor. `plan` goes with the launch of a step, `update` with its end."""

    def __init__(self, max_seq_len: int) -> None:
        self._max_seq_len = max_seq_len

    def plan(self, batch: Batch) -> SamplePlan:
        groups: dict[Strategy, list[int]] = {}
        slots: list[int] = []
        steps: list[int] = []
        beams: list[int] = []
        generated: list[int] = []
        wants_logprobs: list[bool] = []
        forbid_end: list[int] = []
        seeds: dict[int, int] = {}
        position = 0
        for requests in (batch.context, batch.generation):
            for request in requests:
                groups.setdefault(self._strategy(request), []).append(position)
                slots.append(request.slot)
                steps.append(1 + request.num_draft_tokens())
                beams.append(request.beam_width)
                generated.append(request.num_tokens() - request.prompt_len)
                wants_logprobs.append(request.logprobs is not None)
                if request.min_new_tokens and generated[-1] < request.min_new_tokens:
                    forbid_end.append(position)
                seed = request.sampling.random_seed
                if seed is not None:
                    seeds[position] = seed[0]
                position += 1
        rows = np.array(steps, dtype=np.int32) * np.array(beams, dtype=np.int32)
        return SamplePlan(
            groups={strategy: np.array(members, dtype=np.int32) for strategy, members in groups.items()},
            slots=np.array(slots, dtype=np.int32),
            steps=np.array(steps, dtype=np.int32),
            beams=np.array(beams, dtype=np.int32),
            generated=np.array(generated, dtype=np.int32),
            offsets=np.cumsum(rows, dtype=np.int32) - rows,
            wants_logprobs=np.array(wants_logprobs, dtype=np.int32),
            forbid_end=forbid_end,
            seeds=seeds,
        )

    def _strategy(self, request: ActiveRequest) -> Strategy:
        """Resolve a request's sampling parameters, as given, into one of the strategies."""
        config = request.sampling
        temperature = _first(config.temperature)
        top_k = _first(config.top_k)
        top_p = _first(config.top_p)
        if config.beam_width > 1:
            return ("beam", float(config.beam_width), 0, 1.0)
        if (temperature is None and top_k is None and top_p is None) or temperature == 0 or top_k == 1:
            return GREEDY
        temperature = 1.0 if temperature is None else temperature
        if top_k is not None and top_k > 0 and top_p is not None and top_p < 1:
            return ("top_k_top_p", temperature, int(top_k), top_p)
        if top_k is not None and top_k > 0:
            return ("top_k", temperature, int(top_k), 1.0)
        if top_p is not None and top_p < 1:
            return ("top_p", temperature, 0, top_p)
        return ("temperature", temperature, 0, 1.0)

    def update(self, batch: Batch, tokens: list[int], iteration: int) -> list[ActiveRequest]:
        """Give each request its token and check its stop criteria; return those that finished."""
        finished: list[ActiveRequest] = []
        now = monotonic_s()
        position = 0
        for requests in (batch.context, batch.generation):
            for request in requests:
                token = tokens[position]
                position += 1
                if request.is_finished:  # it ended while this step was under way; the step's token is void
                    continue
                total = self._append(request, token)
                request.decoding_iter += 1
                self._handle_logits(request)
                if self._meets_stop_criteria(request, token, total):
                    finished.append(request)
                self._note_times(request, now, iteration)
        return finished

    def _append(self, request: ActiveRequest, token: int) -> int:
        """Append to every beam; without a draft model nothing was accepted and nothing is rewound."""
        total = 0
        for beam in range(request.beam_width):
            total = request.add_token(token, beam)
        request.accepted_draft_tokens = 0
        request.rewind_len = request.num_draft_tokens()
        return total

    def _handle_logits(self, request: ActiveRequest) -> None:
        if request.logprobs is not None or request.return_context_logits or request.return_generation_logits:
            raise NotImplementedError("the emulated device has no logits")

    def _meets_stop_criteria(self, request: ActiveRequest, token: int, total: int) -> bool:
        generated = total - request.prompt_len
        if generated >= request.min_new_tokens and (token == request.end_id or self._is_stop_token(request, token)):
            request.finish("stop")
            return True
        if self._meets_max_tokens(request, generated, total):
            request.finish("length")
            return True
        return False

    def _is_stop_token(self, request: ActiveRequest, token: int) -> bool:
        return bool(request.stop_token_ids) and token in request.stop_token_ids

    def _meets_max_tokens(self, request: ActiveRequest, generated: int, total: int) -> bool:
        return generated >= request.max_new_tokens or total >= self._max_seq_len

    def _note_times(self, request: ActiveRequest, now: float, iteration: int) -> None:
        timing = request.timing
        if request.decoding_iter == 1:
            timing.first_token_time = now
            timing.first_iter = iteration
        if request.is_finished:
            timing.last_token_time = now
            timing.last_iter = iteration


def _first(values: list[float] | list[int] | None) -> float | None:
    return None if values is None else values[0]
