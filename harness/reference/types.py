"""What the proxy and rank 0 say to each other: the request with its sampling parameters, and the responses."""

import time
from array import array
from dataclasses import dataclass, field
from typing import Any

EOS_ID = 2
FIRST_TEXT_ID = 256
VOCAB_SIZE = 32_000


@dataclass(slots=True)
class SamplingParams:
    """The parameters that a request carries; the stack samples greedily and heeds the first block only.

    All are pickled with each request, as in the original: about a kilobyte that costs GIL time on both sides.
    """

    max_tokens: int = 32
    end_id: int = EOS_ID
    ignore_eos: bool = False
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    return_perf_metrics: bool = False

    pad_id: int | None = None
    stop: list[str] | None = None
    bad: list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop_reasons: list[Any] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_ignore_length: int | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str = "raw"
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    additional_model_outputs: list[Any] | None = None
    lookahead_config: Any = None
    guided_decoding: Any = None
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_tokens_start: int | None = None


@dataclass(slots=True)
class ContextPhaseParams:
    """What a generation server learns of a request's context phase, in the engine's form."""

    first_gen_tokens: list[int]
    request_id: int | None
    opaque_state: bytes | None
    draft_tokens: list[int] | None
    ctx_dp_rank: int | None
    info_endpoint: str | None


@dataclass(slots=True, kw_only=True)
class DisaggregatedParams:
    """What a request of disaggregated serving carries, with the original's names.

    `first_gen_tokens` are those that the context server sampled, one per beam; `opaque_state` is what the cache
    transceiver needs to find the cache there (bytes that nobody reads here, and everybody copies).
    """

    request_type: str
    first_gen_tokens: list[int] | None = None
    first_gen_log_probs: list[Any] | None = None
    first_gen_logits: list[Any] | None = None
    ctx_request_id: int | None = None
    opaque_state: bytes | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: int | None = None
    multimodal_embedding_handles: list[Any] | None = None
    multimodal_hashes: list[list[int]] | None = None
    mrope_position_ids_handle: Any = None
    mrope_position_deltas_handle: Any = None

    def context_phase(self) -> ContextPhaseParams | None:
        """Give the engine's form; None for a request whose prompt is read here. Raises ValueError."""
        if self.request_type == "context_and_generation":
            return None
        if self.request_type != "generation_only":
            raise ValueError(f"request_type {self.request_type}: this stack has no context server's side")
        if not self.first_gen_tokens:
            raise ValueError("a generation_only request must bring first_gen_tokens")
        request_id = self.ctx_request_id if self.disagg_request_id is None else self.disagg_request_id
        return ContextPhaseParams(
            self.first_gen_tokens,
            request_id,
            self.opaque_state,
            self.draft_tokens,
            self.ctx_dp_rank,
            self.ctx_info_endpoint,
        )


class GenerationRequest:
    """One request on its way to rank 0. A plain class on purpose: its repr does not spell out the tokens."""

    def __init__(
        self, prompt_token_ids: list[int], sampling_params: SamplingParams, *, streaming: bool, arrival_time: float
    ) -> None:
        self.id: int | None = None
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.postproc_params: Any = None
        self.streaming = streaming
        self.arrival_time = arrival_time
        self.query_token_ids: list[int] | None = None
        self.lora_request: Any = None
        self.prompt_adapter_request: Any = None
        self.disaggregated_params: DisaggregatedParams | None = None
        self.scheduling_params: Any = None
        self.conversation_params: Any = None
        self.multimodal_params: Any = None
        self.kv_cache_retention_config: Any = None
        self.trace_headers: dict[str, str] | None = None
        self.priority: float = 0.5
        self.cache_salt_id: int | None = None

    def set_id(self, client_id: int) -> "GenerationRequest":
        self.id = client_id
        return self


class PackedGenerationRequest(GenerationRequest):
    """The same request with its token ids as int32 bytes on the wire: flat to pickle, and never a list on rank 0.

    On the sending side `prompt_token_ids` is the list that the front end made; on the receiving side it stays None and
    `packed_token_ids` holds the bytes (native byte order: both ends are one machine).
    """

    packed_token_ids: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["packed_token_ids"] = array("i", self.prompt_token_ids).tobytes()
        state["prompt_token_ids"] = None
        return state


@dataclass(slots=True)
class RequestTiming:
    """Rank 0's times of one request, CLOCK_MONOTONIC seconds; `first_iter` and `last_iter` are loop turns.

    `prompt_blocks` and `blocks` count the KV-cache blocks that it got for its prompt, and in all.
    """

    arrival_time: float
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    first_iter: int = 0
    last_iter: int = 0
    prompt_blocks: int = 0
    blocks: int = 0


@dataclass(slots=True)
class Response:
    """New tokens of one request, or its end. `finish_reason` is length | stop | cancelled when `is_final`."""

    client_id: int
    token_ids: list[int]
    decoding_iter: int
    is_final: bool = False
    finish_reason: str | None = None
    timing: RequestTiming | None = None


@dataclass(slots=True)
class ErrorResponse:
    """A request that was refused or lost; ends it at the proxy. Refusals are 4xx, the stack's own failures 5xx."""

    client_id: int
    message: str
    http_status: int = 400


@dataclass(slots=True)
class Formatted:
    """A Response as the bytes that it adds to an HTTP answer; `output_tokens` counts those in it."""

    client_id: int
    pieces: list[bytes]
    output_tokens: int
    is_final: bool = False
    timing: RequestTiming | None = None


EngineResponse = Response | ErrorResponse
AnyResponse = EngineResponse | Formatted


@dataclass(slots=True)
class WorkerInfo:
    """Who rank 0 is, as it tells the proxy: pid, thread names by native id, counters, child pids by role.

    `ended_requests` and `output_tokens` count the last responses and the tokens that rank 0 has handed out; `memory` is
    what memory_in_use says.
    """

    pid: int
    threads: dict[int, str] = field(default_factory=dict)
    submit_messages: int = 0
    submit_requests: int = 0
    ended_requests: int = 0
    output_tokens: int = 0
    active_requests: int = 0
    queued_requests: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    iterations: int = 0
    refused_messages: int = 0
    duplicate_ids: int = 0
    child_pids: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)


def request_class(wire_format: str) -> type[GenerationRequest]:
    """Return the class of requests for the setting `token_ids`, which is list or int32."""
    return PackedGenerationRequest if wire_format == "int32" else GenerationRequest


def monotonic_s() -> float:
    return time.monotonic()
