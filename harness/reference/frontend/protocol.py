"""The bodies of OpenAI's completion endpoints, as far as a load generator and its users need them."""

import base64
import time
from array import array
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.reference.types import DisaggregatedParams

TokenIds = list[int]


class StreamOptions(BaseModel):
    include_usage: bool = False


class DisaggregatedBody(BaseModel):
    """The original's `disaggregated_params`; what it has besides is let through."""

    model_config = ConfigDict(extra="allow")

    request_type: str
    first_gen_tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=1)] | None = None
    ctx_request_id: int | None = None
    encoded_opaque_state: str | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: int | None = None

    def params(self) -> DisaggregatedParams:
        """Give the form that travels to rank 0. Raises ValueError when the opaque state is not base64."""
        encoded = self.encoded_opaque_state
        return DisaggregatedParams(
            request_type=self.request_type.lower(),
            first_gen_tokens=self.first_gen_tokens,
            ctx_request_id=self.ctx_request_id,
            opaque_state=None if encoded is None else from_base64("encoded_opaque_state", encoded),
            draft_tokens=self.draft_tokens,
            disagg_request_id=self.disagg_request_id,
            ctx_dp_rank=self.ctx_dp_rank,
            ctx_info_endpoint=self.ctx_info_endpoint,
            schedule_style=self.schedule_style,
        )


def from_base64(name: str, text: str) -> bytes:
    """Decode a field. Raises ValueError with its name."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{name}: not base64 ({error})") from error


def token_ids_from_base64(text: str) -> list[int]:
    """Decode `prompt_token_ids_b64`: little-endian int32 token ids. Raises ValueError."""
    ids = array("i")
    data = from_base64("prompt_token_ids_b64", text)
    if len(data) % ids.itemsize:
        raise ValueError(f"prompt_token_ids_b64: {len(data)} bytes are no int32 token ids")
    ids.frombytes(data)
    return ids.tolist()


class GenerationBody(BaseModel):
    """What both endpoints accept; unknown fields are let through, as OpenAI clients send many."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    disaggregated_params: DisaggregatedBody | None = None


class CompletionRequest(GenerationBody):
    prompt: str | TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = 16


class ContentPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[ContentPart] | None = None


class ChatRequest(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    prompt_token_ids: TokenIds | None = None
    prompt_token_ids_b64: str | None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, completion: int) -> "Usage":
        return cls(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


class CompletionChoice(BaseModel):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Completion(BaseModel):
    """A whole answer of /v1/completions, or one chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatMessage(BaseModel):
    role: str | None = None
    content: str | None = None


class ChatChoice(BaseModel):
    index: int = 0
    message: ChatMessage
    logprobs: None = None
    finish_reason: str | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ChatDeltaChoice(BaseModel):
    index: int = 0
    delta: ChatMessage
    logprobs: None = None
    finish_reason: str | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDeltaChoice]
    usage: Usage | None = None


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorEnvelope(BaseModel):
    error: ErrorBody

    @classmethod
    def of(cls, message: str, code: int) -> "ErrorEnvelope":
        kind = "invalid_request_error" if code < 500 else "server_error"
        return cls(error=ErrorBody(message=message, type=kind, code=code))


def now_s() -> int:
    return int(time.time())
