"""A request inside rank 0: as enqueued, and as the executor loop keeps it while it is active."""

from array import array
from collections.abc import Sequence

from harness.reference.types import RequestTiming, SamplingParams


class EngineRequest:
    """What `submit` builds from a GenerationRequest: the prompt as a C array of int32 and the sampling settings used.

    The element-wise copy of the token list into the array is the original's cast into its C++ request.
    """

    __slots__ = ("arrival_time", "client_id", "prompt", "sampling", "streaming")

    def __init__(
        self,
        client_id: int,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        streaming: bool,
        arrival_time: float,
    ) -> None:
        self.client_id = client_id
        self.prompt = array("i", token_ids)
        self.sampling = sampling
        self.streaming = streaming
        self.arrival_time = arrival_time


class ActiveRequest:
    """A scheduled request: its tokens, cache blocks, slot and progress. Touched by the executor loop only.

    `launched` counts the steps that this request was part of: with the overlap scheduler it is one ahead of the tokens
    that the host has seen. `pending_tokens` are those that no response has carried yet.
    """

    __slots__ = (
        "blocks",
        "client_id",
        "decoding_iter",
        "end_id",
        "finish_reason",
        "is_context",
        "launched",
        "max_new_tokens",
        "min_new_tokens",
        "pending_tokens",
        "prompt",
        "prompt_len",
        "request_id",
        "responded_iter",
        "slot",
        "stop_token_ids",
        "streaming",
        "timing",
        "tokens",
        "wants_timing",
    )

    def __init__(self, request_id: int, request: EngineRequest, slot: int) -> None:
        sampling = request.sampling
        self.request_id = request_id
        self.client_id = request.client_id
        self.prompt = request.prompt
        self.prompt_len = len(request.prompt)
        self.max_new_tokens = sampling.max_tokens
        self.min_new_tokens = sampling.min_tokens or 0
        self.end_id = -1 if sampling.ignore_eos else sampling.end_id
        self.stop_token_ids: tuple[int, ...] = tuple(sampling.stop_token_ids or ())
        self.streaming = request.streaming
        self.wants_timing = sampling.return_perf_metrics
        self.slot = slot
        self.blocks: list[int] = []
        self.tokens: list[int] = []
        self.pending_tokens: list[int] = []
        self.is_context = True
        self.launched = 0
        self.decoding_iter = 0
        self.responded_iter = 0
        self.finish_reason: str | None = None
        self.timing = RequestTiming(request.arrival_time)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def num_tokens(self) -> int:
        return self.prompt_len + len(self.tokens)

    def last_token(self) -> int:
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def add_token(self, token: int) -> int:
        """Append one sampled token; return how many tokens the sequence now has."""
        self.tokens.append(token)
        self.pending_tokens.append(token)
        self.decoding_iter += 1
        return self.prompt_len + len(self.tokens)

    def should_respond(self, stream_interval: int) -> bool:
        """Say whether this step's response list has this request: first token, end, every `stream_interval` tokens."""
        if self.finish_reason is not None:
            return True
        if not self.streaming:
            return False
        return self.decoding_iter == 1 or self.decoding_iter - self.responded_iter >= stream_interval

    def take_pending(self) -> list[int]:
        pending, self.pending_tokens = self.pending_tokens, []
        self.responded_iter = self.decoding_iter
        return pending
