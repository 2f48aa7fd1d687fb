"""The bodies of OpenAI's completion endpoints, as far as a load generator and its users need them."""

import time
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

TokenIds = list[int]


class StreamOptions(BaseModel):
    include_usage: bool = False


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
