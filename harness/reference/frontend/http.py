"""The HTTP front end: OpenAI's completion endpoints and the original's observation endpoints, on FastAPI."""

import asyncio
import contextlib
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from harness.reference import tokens
from harness.reference.frontend import protocol as oai
from harness.reference.frontend.chunks import AnswerForm
from harness.reference.frontend.generation import Generation, GenerationFailed, Generator
from harness.reference.frontend.peers import Peers
from harness.reference.frontend.truth import PerfLog
from harness.reference.memory import memory_in_use
from harness.reference.proxy import RpcProxy
from harness.reference.rpc.envelope import RPCError
from harness.reference.settings import ReferenceSettings
from harness.reference.types import SamplingParams

MODEL = "reference"
CHAT_DEFAULT_TOKENS = 256
DONE = b"data: [DONE]\n\n"


class _Refused(Exception):  # noqa: N818 - it names what happened
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def _no_telemetry() -> dict[str, Any]:
    """Keep newer FastAPI from tracing every request: the original's front end does not, and it costs CPU."""
    if "telemetry" not in inspect.signature(FastAPI.__init__).parameters:
        return {}
    parts = ("tracing", "metrics", "logs", "operation_spans", "auto_configure")
    return {"telemetry": dict.fromkeys(parts, False)}


class _ArrivalStamp:
    """ASGI middleware: notes when the request reached the application, before its body is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["arrived_s"] = time.monotonic()
        await self._app(scope, receive, send)


def _error(message: str, code: int) -> JSONResponse:
    return JSONResponse(oai.ErrorEnvelope.of(message, code).model_dump(), status_code=code)


def _sampling(body: oai.GenerationBody, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        stop_token_ids=body.stop_token_ids,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
    )


def _prompt_ids(prompt: str | list[int] | list[list[int]]) -> list[int]:
    if isinstance(prompt, str):
        return tokens.encode(prompt)
    first = prompt[0] if prompt else None
    return first if isinstance(first, list) else prompt  # type: ignore[return-value]


def _chat_ids(body: oai.ChatRequest) -> list[int]:
    if body.prompt_token_ids_b64 is not None:
        try:
            return oai.token_ids_from_base64(body.prompt_token_ids_b64)
        except ValueError as error:
            raise _Refused(str(error), 400) from error
    if body.prompt_token_ids is not None:
        return body.prompt_token_ids
    lines = []
    for message in body.messages:
        content = message.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        lines.append(f"<|{message.role}|>{text}")
    return tokens.encode("".join(lines) + "<|assistant|>")


class HttpFrontend:
    """The application; `build` makes the FastAPI app that uvicorn serves."""

    def __init__(
        self, proxy: RpcProxy, settings: ReferenceSettings, perf: PerfLog, healthy: Callable[[], bool]
    ) -> None:
        self._proxy = proxy
        self._settings = settings
        self._perf = perf
        self._healthy = healthy
        self._peers: Peers | None = None
        self._generator: Generator | None = None

    def answers(self) -> dict[str, Callable[[], Any]]:
        """Give what this front end can be asked by the others."""
        return {"perf": self._perf.drain, "self": self._own_info, "health": self._own_health}

    def _own_health(self) -> bool:
        return self._proxy.healthy() and self._healthy()

    def build(self, peers: Peers) -> FastAPI:
        self._peers = peers

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            self._generator = Generator(self._proxy, self._settings, self._perf)
            yield

        app = FastAPI(
            title="reference serving stack", lifespan=lifespan, docs_url=None, redoc_url=None, **_no_telemetry()
        )
        if self._settings.json == "orjson":
            from harness.reference.frontend.bodies import OrjsonRoute

            app.router.route_class = OrjsonRoute
        app.add_middleware(_ArrivalStamp)
        app.add_exception_handler(_Refused, self._on_refused)
        app.add_exception_handler(RequestValidationError, self._on_invalid)
        app.add_exception_handler(HTTPException, self._on_http_error)
        app.get("/health")(self.health)
        app.get("/version")(self.version)
        app.get("/v1/models")(self.models)
        app.get("/metrics")(self.metrics)
        app.get("/perf_metrics")(self.perf_metrics)
        app.get("/server_info")(self.server_info)
        app.post("/v1/completions", response_model=None)(self.completions)
        app.post("/v1/chat/completions", response_model=None)(self.chat_completions)
        return app

    # errors, in OpenAI's form

    async def _on_refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, _Refused)
        return _error(error.message, error.code)

    async def _on_invalid(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return _error(f"{where or 'body'}: {first['msg']}", 400)

    async def _on_http_error(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error(str(error.detail), error.status_code)

    # observation

    async def health(self) -> Response:
        """Say 200 while every process of the stack is there; the first front end, which started them, knows."""
        assert self._peers is not None
        healthy = self._own_health() and (self._proxy.frontend == 0 or await self._peers.ask(0, "health") is True)
        return Response(status_code=200 if healthy else 503)

    async def version(self) -> dict[str, str]:
        return {"version": version("loadgen-gil"), "stack": "reference"}

    async def models(self) -> dict[str, Any]:
        card = {"id": MODEL, "object": "model", "created": oai.now_s(), "owned_by": "reference-stack"}
        return {"object": "list", "data": [card]}

    async def metrics(self) -> list[dict[str, Any]]:
        return await self._proxy.fetch_stats()

    async def perf_metrics(self) -> list[dict[str, Any]]:
        assert self._peers is not None
        return [record for records in await self._peers.ask_all("perf") for record in records]

    async def server_info(self) -> dict[str, Any]:
        """Tell who is who: settings, processes by role, thread names by native id, counters of submits and refusals."""
        assert self._peers is not None
        rank0 = await self._proxy.info()
        frontends = await self._peers.ask_all("self")
        processes = [frontend["process"] for frontend in frontends]
        if rank0.pid == processes[0]["pid"]:
            processes[0]["role"] = "server"
        else:
            processes.append({"role": "rank0", "pid": rank0.pid, "threads": rank0.threads, "memory": rank0.memory})
        processes += [{"role": role, "pid": child, "threads": {}} for role, child in rank0.child_pids.items()]
        return {
            "stack": "reference",
            "settings": self._settings.to_json(),
            "processes": processes,
            "executor_pid": rank0.pid,
            "submit": {"messages": rank0.submit_messages, "requests": rank0.submit_requests},
            "answered": {"requests": rank0.ended_requests, "output_tokens": rank0.output_tokens},
            "refused": {
                "duplicate_ids": rank0.duplicate_ids,
                "messages_at_rank0": rank0.refused_messages,
                "messages_at_proxy": sum(frontend["refused_messages"] for frontend in frontends),
            },
            "active_requests": rank0.active_requests,
            "queued_requests": rank0.queued_requests,
            "kv_blocks": {"free": rank0.free_blocks, "total": rank0.total_blocks},
            "iterations": rank0.iterations,
            "in_flight": sum(frontend["in_flight"] for frontend in frontends),
        }

    def _own_info(self) -> dict[str, Any]:
        number = self._proxy.frontend
        threads = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
        return {
            "process": {
                "role": f"frontend{number}" if number else "proxy",
                "pid": os.getpid(),
                "threads": threads,
                "memory": memory_in_use(),
            },
            "in_flight": self._proxy.in_flight(),
            "refused_messages": self._proxy.refused_messages(),
        }

    # generation

    async def completions(self, body: oai.CompletionRequest, request: Request) -> Response:
        return await self._answer(body, _prompt_ids(body.prompt), body.max_tokens, request, chat=False)

    async def chat_completions(self, body: oai.ChatRequest, request: Request) -> Response:
        max_tokens = body.max_completion_tokens or body.max_tokens or CHAT_DEFAULT_TOKENS
        return await self._answer(body, _chat_ids(body), max_tokens, request, chat=True)

    async def _answer(
        self, body: oai.GenerationBody, ids: list[int], max_tokens: int, request: Request, *, chat: bool
    ) -> Response:
        form = AnswerForm(
            chat=chat,
            streaming=body.stream,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            model=body.model or MODEL,
            created=oai.now_s(),
            prompt_tokens=len(ids),
        )
        generation = self._submit(body, ids, max_tokens, form, request.scope["arrived_s"])
        if body.stream:
            return _event_stream(_events(generation))
        return Response(await _whole(generation, request), media_type="application/json")

    def _submit(
        self, body: oai.GenerationBody, ids: list[int], max_tokens: int, form: AnswerForm, arrived_s: float
    ) -> Generation:
        assert self._generator is not None
        if not all(0 <= token < 2**31 for token in ids):
            raise _Refused("token ids must be between 0 and 2147483647", 400)
        try:
            disaggregated = None if body.disaggregated_params is None else body.disaggregated_params.params()
        except ValueError as error:
            raise _Refused(str(error), 400) from error
        try:
            sampling = _sampling(body, max_tokens)
            return self._generator.submit(ids, sampling, form, disaggregated, arrived_s=arrived_s)
        except RPCError as error:
            raise _Refused(f"the request was not taken: {error}", 503) from error


def _event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _events(generation: Generation) -> AsyncIterator[bytes]:
    """Pass a request's events on; a failure becomes an error event."""
    try:
        async with contextlib.aclosing(generation.pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece
    except GenerationFailed as error:
        failed = oai.ErrorEnvelope.of(str(error), error.http_status)
        yield f"data: {failed.model_dump_json()}\n\n".encode()
        return
    yield DONE


async def _whole(generation: Generation, request: Request) -> bytes:
    """Collect a whole answer's body; a client that goes away meanwhile aborts it."""

    async def collect() -> bytes:
        async with contextlib.aclosing(generation.pieces()) as pieces:  # type: ignore[type-var]
            return b"".join([piece async for piece in pieces])

    collecting = asyncio.create_task(collect())
    leaving = asyncio.create_task(_await_disconnected(request))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            raise _Refused("the client went away", 499)
        return collecting.result()
    except GenerationFailed as error:
        raise _Refused(str(error), error.http_status) from error
    finally:
        for task in (collecting, leaving):
            task.cancel()
        await _settled(collecting, leaving)


async def _settled(*tasks: Awaitable[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _await_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
