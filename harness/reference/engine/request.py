"""A request inside rank 0: as enqueued, and as the executor loop keeps it while it is active."""

import enum
from array import array
from collections.abc import Sequence
from typing import Any, TypeVar

from harness.reference.types import ContextPhaseParams, RequestTiming, SamplingParams

_T = TypeVar("_T")


class EngineRequest:
    """What `submit` builds from a GenerationRequest: the prompt as a C array of int32 and the sampling settings used.

    From a list, the prompt is cast element by element, as into the original's C++ request; from int32 bytes it is one
    copy of memory. With `context_phase`, the prompt was read elsewhere.
    """

    __slots__ = ("arrival_time", "client_id", "context_phase", "packed", "prompt", "sampling", "streaming")

    def __init__(
        self,
        client_id: int,
        token_ids: Sequence[int] | bytes,
        sampling: SamplingParams,
        *,
        streaming: bool,
        arrival_time: float,
        context_phase: ContextPhaseParams | None = None,
    ) -> None:
        self.client_id = client_id
        self.packed = isinstance(token_ids, bytes)
        if isinstance(token_ids, bytes):
            self.prompt = array("i")
            self.prompt.frombytes(token_ids)
        else:
            self.prompt = array("i", token_ids)
        self.sampling = sampling
        self.streaming = streaming
        self.arrival_time = arrival_time
        self.context_phase = context_phase

    def token_ids(self) -> list[int]:
        """Return a copy of the prompt as a list: what the original's getter does."""
        return self.prompt.tolist()

    def __getstate__(self) -> tuple[Any, ...]:
        """Give the state for a broadcast: the prompt as int32 bytes if it came so, else token by token."""
        prompt: list[int] | bytes = self.prompt.tobytes() if self.packed else self.prompt.tolist()
        return (self.client_id, prompt, self.sampling, self.streaming, self.arrival_time, self.context_phase)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        client_id, prompt, sampling, streaming, arrived, context_phase = state
        self.__init__(  # type: ignore[misc]
            client_id, prompt, sampling, streaming=streaming, arrival_time=arrived, context_phase=context_phase
        )


class State(enum.IntEnum):
    """Where a request stands; the order matters to the scheduler."""

    CONTEXT_INIT = 0
    GENERATION = 1
    COMPLETE = 2


class SamplingConfig:
    """The engine's form of the sampling parameters: a list with one entry per sequence, or None where unset."""

    __slots__ = ("beam_width", "min_p", "random_seed", "repetition_penalty", "temperature", "top_k", "top_p")

    def __init__(self, params: SamplingParams) -> None:
        self.beam_width = 1
        self.temperature = _one(params.temperature)
        self.top_k = _one(params.top_k)
        self.top_p = _one(params.top_p)
        self.min_p = _one(params.min_p)
        self.random_seed = _one(params.seed)
        self.repetition_penalty = _one(params.repetition_penalty)


def _one(value: _T | None) -> list[_T] | None:
    return None if value is None else [value]


class _Core:
    """The fields that live on the C++ side of the original's request."""

    __slots__ = (
        "beam_tokens", "client_id", "context_phase", "context_position", "decoding_iter", "draft_tokens", "end_id",
        "finish_reasons", "is_dummy", "is_generation_only", "lora_task_id", "max_new_tokens", "prompt_len",
        "request_id", "sampling", "slot", "state", "streaming",
    )  # fmt: skip

    def __init__(self, request_id: int, request: EngineRequest, slot: int) -> None:
        params = request.sampling
        self.request_id = request_id
        self.client_id = request.client_id
        self.prompt_len = len(request.prompt)
        self.max_new_tokens = params.max_tokens
        self.end_id = -1 if params.ignore_eos else params.end_id
        self.streaming = request.streaming
        self.sampling = SamplingConfig(params)
        self.slot = slot
        self.state = State.CONTEXT_INIT
        self.context_position = 0
        self.decoding_iter = 0
        self.beam_tokens: list[list[int]] = [[]]
        self.draft_tokens: list[int] = []
        self.finish_reasons: list[str | None] = [None]
        self.lora_task_id: int | None = None
        self.is_dummy = False
        self.context_phase = request.context_phase
        self.is_generation_only = request.context_phase is not None


class ActiveRequest:
    """A scheduled request: its tokens, cache blocks, slot and progress. Touched by the executor loop only.

    Fields that the original keeps in its C++ request are properties here too: reading one from Python is a call in
    both. Plain attributes are those that the original hangs on the Python side. `launched` counts the steps that this
    request was part of: with the overlap scheduler it is one ahead of the tokens that the host has seen.
    `pending_tokens` are those that no response has carried yet.
    """

    __slots__ = (
        "_core",
        "accepted_draft_tokens",
        "batch_index",
        "blocks",
        "launched",
        "logprobs",
        "min_new_tokens",
        "multimodal_data",
        "pending_tokens",
        "prompt",
        "responded_iter",
        "return_context_logits",
        "return_generation_logits",
        "rewind_len",
        "stop_token_ids",
        "timing",
        "wants_timing",
    )

    def __init__(self, request_id: int, request: EngineRequest, slot: int) -> None:
        params = request.sampling
        self._core = _Core(request_id, request, slot)
        self.prompt = request.prompt
        self.min_new_tokens = params.min_tokens or 0
        self.stop_token_ids: tuple[int, ...] = tuple(params.stop_token_ids or ())
        self.wants_timing = params.return_perf_metrics
        self.logprobs = params.logprobs
        self.return_context_logits = params.return_context_logits
        self.return_generation_logits = params.return_generation_logits
        self.multimodal_data: object = None
        self.batch_index: int | None = None
        self.accepted_draft_tokens = 0
        self.rewind_len = 0
        self.blocks: list[int] = []
        self.pending_tokens: list[int] = []
        self.launched = 0
        self.responded_iter = 0
        self.timing = RequestTiming(request.arrival_time)

    @property
    def request_id(self) -> int:
        return self._core.request_id

    @property
    def client_id(self) -> int:
        return self._core.client_id

    @property
    def prompt_len(self) -> int:
        return self._core.prompt_len

    @property
    def max_new_tokens(self) -> int:
        return self._core.max_new_tokens

    @property
    def end_id(self) -> int:
        return self._core.end_id

    @property
    def streaming(self) -> bool:
        return self._core.streaming

    @property
    def sampling(self) -> SamplingConfig:
        return self._core.sampling

    @property
    def slot(self) -> int:
        """The sequence slot; -1 once the request has been released."""
        return self._core.slot

    @slot.setter
    def slot(self, value: int) -> None:
        self._core.slot = value

    @property
    def state(self) -> State:
        return self._core.state

    @state.setter
    def state(self, value: State) -> None:
        self._core.state = value

    @property
    def is_generation(self) -> bool:
        return self._core.state is State.GENERATION

    @property
    def is_finished(self) -> bool:
        return self._core.state is State.COMPLETE

    @property
    def is_dummy(self) -> bool:
        return self._core.is_dummy

    @property
    def is_generation_only(self) -> bool:
        """Say whether the prompt was read elsewhere and its cache arrives by transfer."""
        return self._core.is_generation_only

    @property
    def context_phase(self) -> ContextPhaseParams | None:
        return self._core.context_phase

    @property
    def beam_width(self) -> int:
        return self._core.sampling.beam_width

    @property
    def lora_task_id(self) -> int | None:
        return self._core.lora_task_id

    @property
    def draft_tokens(self) -> list[int]:
        return self._core.draft_tokens

    @property
    def context_position(self) -> int:
        return self._core.context_position

    @context_position.setter
    def context_position(self, value: int) -> None:
        self._core.context_position = value

    @property
    def decoding_iter(self) -> int:
        return self._core.decoding_iter

    @decoding_iter.setter
    def decoding_iter(self, value: int) -> None:
        self._core.decoding_iter = value

    @property
    def finish_reason(self) -> str | None:
        return self._core.finish_reasons[0]

    def num_tokens(self, beam: int = 0) -> int:
        return self._core.prompt_len + len(self._core.beam_tokens[beam])

    def num_draft_tokens(self) -> int:
        return len(self._core.draft_tokens)

    def last_token(self, beam: int = 0) -> int:
        tokens = self._core.beam_tokens[beam]
        return tokens[-1] if tokens else self.prompt[-1]

    def add_token(self, token: int, beam: int = 0) -> int:
        """Append one sampled token; return how many tokens the sequence now has."""
        self._core.beam_tokens[beam].append(token)
        self.pending_tokens.append(token)
        return self.num_tokens(beam)

    def finish(self, reason: str, beam: int = 0) -> None:
        self._core.finish_reasons[beam] = reason
        self._core.state = State.COMPLETE

    def should_respond(self, stream_interval: int) -> bool:
        """Say whether this step's response list has this request: first token, end, every `stream_interval` tokens."""
        if self.is_finished:
            return True
        if not self.streaming:
            return False
        return self.decoding_iter == 1 or self.decoding_iter - self.responded_iter >= stream_interval

    def take_pending(self) -> list[int]:
        pending, self.pending_tokens = self.pending_tokens, []
        self.responded_iter = self.decoding_iter
        return pending
