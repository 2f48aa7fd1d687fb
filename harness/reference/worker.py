"""Rank 0: the RPC methods, and the process that runs them in the `pool` layout."""

import asyncio
import copy
import os
import shutil
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from harness.reference import log
from harness.reference.child import take_task
from harness.reference.engine.executor import Executor
from harness.reference.engine.request import EngineRequest
from harness.reference.fanout import ResponseFan
from harness.reference.frontend.chunks import AnswerForm
from harness.reference.memory import memory_in_use
from harness.reference.postproc.pool import PostprocPool
from harness.reference.rpc.server import RPCServer
from harness.reference.rpc.socket import receiving
from harness.reference.settings import ReferenceSettings
from harness.reference.types import (
    AnyResponse,
    ErrorResponse,
    Formatted,
    GenerationRequest,
    PackedGenerationRequest,
    Response,
    WorkerInfo,
)

AWAIT_RESPONSES_S = 0.1
EARLY_ABORTS_KEPT = 65_536
METHODS = frozenset(
    {
        "setup_engine",
        "submit",
        "submit_batch",
        "abort_request",
        "fetch_responses_loop_async",
        "fetch_stats",
        "info",
        "shutdown",
    }
)


class DuplicateClientId(ValueError):  # noqa: N818 - it names what happened
    """A request came with the client id of one that is under way; it was refused, and the other goes on."""


class WorkerResult:
    """What rank 0 remembers of a request between its submit and its last response.

    `form` is set where the request is post-processed, until its first response has taken it along.
    """

    __slots__ = ("arrival_time", "client_id", "done", "form", "postprocessed", "request_id")

    def __init__(self, request: GenerationRequest) -> None:
        self.client_id = request.id
        self.request_id: int | None = None
        self.arrival_time = request.arrival_time
        self.form: AnswerForm | None = request.postproc_params
        self.postprocessed = self.form is not None
        self.done = False

    def take_form(self) -> AnswerForm | None:
        form, self.form = self.form, None
        return form


class RpcWorker:
    """The methods that the proxy calls. Plain ones run on pool threads, beside the executor loop."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self._settings = settings
        self._results: dict[int, WorkerResult] = {}
        self._early_aborts: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()
        self._submit_messages = 0
        self._submit_requests = 0
        self._duplicate_ids = 0
        self._ended_requests = 0
        self._output_tokens = 0
        self.shutdown_event = threading.Event()
        self._address = ""
        self._key = b""
        self._server: RPCServer | None = None
        self._postproc: PostprocPool | None = None
        self._fan = ResponseFan(settings.http_frontends, self._fetch_responses, self.shutdown_event)
        self._executor = Executor(settings, self._submit_counters, on_failure=self.shutdown_event.set)

    def _submit_counters(self) -> tuple[int, int]:
        return self._submit_messages, self._submit_requests

    def setup_engine(self) -> None:
        if self._settings.postproc_workers:
            self._postproc = PostprocPool(
                self._settings.postproc_workers,
                json_library=self._settings.json,
                log_level=self._settings.log_level,
                rpc_address=self._address,
                key=self._key,
                deliver=self._executor.post,
                on_failure=self.shutdown_event.set,
            )
            self._postproc.start()
        self._executor.start()

    def submit(self, request: GenerationRequest) -> None:
        """Enqueue one request. A bad one is answered by an ErrorResponse on the response stream."""
        with self._lock:
            self._submit_messages += 1
        self._refuse_duplicates([] if self._submit_one(request) else [request.id])

    def submit_batch(self, requests: list[GenerationRequest]) -> None:
        """Enqueue the requests one after the other; each bad one fails alone."""
        with self._lock:
            self._submit_messages += 1
        self._refuse_duplicates([request.id for request in requests if not self._submit_one(request)])

    def _refuse_duplicates(self, duplicates: list[int | None]) -> None:
        """Raise DuplicateClientId: an error on the response stream would end the request that had the id first."""
        if duplicates:
            raise DuplicateClientId(f"refused, for their client ids are under way: {duplicates}")

    def _submit_one(self, request: GenerationRequest) -> bool:
        """Enqueue one request, or answer it with its error; False if its id is under way."""
        client_id = request.id
        assert client_id is not None
        with self._lock:
            self._submit_requests += 1
            if client_id in self._results:
                self._duplicate_ids += 1
                return False
            aborted = client_id in self._early_aborts
            if aborted:
                del self._early_aborts[client_id]
            else:
                result = self._results[client_id] = WorkerResult(request)
        if aborted:
            self._executor.post([Response(client_id, [], 0, is_final=True, finish_reason="cancelled")])
            return True
        try:
            self._enqueue_request(client_id, request, result)
        except Exception as error:  # noqa: BLE001 - border of one request: it must not take its batch along
            self._results.pop(client_id, None)
            self._executor.post([ErrorResponse(client_id, str(error) or repr(error))])
        return True

    def _enqueue_request(self, client_id: int, request: GenerationRequest, result: WorkerResult) -> None:
        disaggregated = request.disaggregated_params
        engine_request = EngineRequest(
            client_id,
            self._token_ids(request),
            request.sampling_params,
            streaming=request.streaming,
            arrival_time=time.monotonic(),
            context_phase=None if disaggregated is None else disaggregated.context_phase(),
        )
        request_id = self._executor.enqueue_request(engine_request)
        with self._lock:
            result.request_id = request_id
            cancelled = result.done
        if cancelled:  # an abort came between registering and queueing
            self._executor.cancel(request_id)

    def _token_ids(self, request: GenerationRequest) -> list[int] | bytes:
        """Take the prompt as it came: bytes as they are, a list copied as the settings say."""
        if isinstance(request, PackedGenerationRequest) and request.packed_token_ids is not None:
            return request.packed_token_ids
        if self._settings.enqueue_copy == "deepcopy":
            return copy.deepcopy(request.prompt_token_ids)
        if self._settings.enqueue_copy == "list":
            return list(request.prompt_token_ids)
        return request.prompt_token_ids

    def abort_request(self, client_id: int) -> None:
        """End a request; one that has not arrived yet (calls may overtake each other) is ended on arrival."""
        with self._lock:
            result = self._results.get(client_id)
            if result is None:
                self._early_aborts[client_id] = None
                if len(self._early_aborts) > EARLY_ABORTS_KEPT:
                    self._early_aborts.popitem(last=False)
                return
            result.done = True
            request_id = result.request_id
        if request_id is not None:
            self._executor.cancel(request_id)

    def _fetch_responses(self) -> list[AnyResponse]:
        """Wait for responses, take all of them, and forget the requests that ended.

        Those to be post-processed go that way, and come back here as written; the others are returned as one list.
        """
        finished: list[AnyResponse] = []
        for response in self._executor.await_responses(AWAIT_RESPONSES_S):
            if isinstance(response, Formatted):
                finished.append(response)
                continue
            result = self._results.get(response.client_id)
            if isinstance(response, ErrorResponse):
                self._forget(response.client_id)
            else:
                self._output_tokens += len(response.token_ids)
                if response.is_final:
                    self._forget(response.client_id)
            if self._postproc is not None and result is not None and result.postprocessed:
                self._postproc.add(response, result.take_form())
            else:
                finished.append(response)
        if self._postproc is not None:
            self._postproc.flush()
        return finished

    def _forget(self, client_id: int) -> None:
        self._results.pop(client_id, None)
        self._ended_requests += 1

    async def fetch_responses_loop_async(self, frontend: int) -> AsyncIterator[list[AnyResponse]]:
        """Stream the response lists of one front end, one message each, until shutdown."""
        if self._settings.http_frontends > 1:
            async for share in self._fan.stream(frontend):
                yield share
            return
        while not self.shutdown_event.is_set():
            responses = await asyncio.to_thread(self._fetch_responses)
            if responses:
                yield responses

    def fetch_stats(self) -> list[dict[str, Any]]:
        return self._executor.iterations.drain()

    def info(self) -> WorkerInfo:
        executor = self._executor
        return WorkerInfo(
            pid=os.getpid(),
            threads={thread.native_id or 0: thread.name for thread in threading.enumerate()},
            submit_messages=self._submit_messages,
            submit_requests=self._submit_requests,
            ended_requests=self._ended_requests,
            output_tokens=self._output_tokens,
            active_requests=executor.active_requests,
            queued_requests=executor.queued_requests,
            free_blocks=executor.blocks.free_blocks,
            total_blocks=executor.blocks.total_blocks,
            iterations=executor.iterations.count,
            refused_messages=self._refused_messages(),
            duplicate_ids=self._duplicate_ids,
            child_pids=executor.rank_pids | ({} if self._postproc is None else self._postproc.pids),
            memory=memory_in_use(),
        )

    def _refused_messages(self) -> int:
        refused = 0 if self._server is None else self._server.refused_messages
        return refused + (0 if self._postproc is None else self._postproc.refused_messages)

    def shutdown(self) -> None:
        self.shutdown_event.set()

    def run(self, address: str, key: bytes) -> None:
        """Serve at `address` until `shutdown` is called. In the `thread` layout this runs on a thread of the proxy."""
        self._address, self._key = address, key
        tasks = self._settings.rpc_tasks + self._settings.http_frontends - 1  # every response stream keeps one
        server = self._server = RPCServer(self, METHODS, address, key, tasks=tasks, receive=receiving(self._settings))
        sys.setswitchinterval(self._settings.switch_interval_ms / 1e3)
        server.start()
        try:
            self.shutdown_event.wait()
        finally:
            self._executor.stop()
            server.stop()
            if self._postproc is not None:
                self._postproc.stop()


def _remove_socket_folder(task: dict[str, Any]) -> None:
    shutil.rmtree(Path(task["address"].removeprefix("ipc://")).parent, ignore_errors=True)


def worker_from_standard_input() -> Callable[[], None]:
    """Set rank 0 up in a process of its own, as the task on standard input says; return what runs it to its end."""
    task = take_task(_remove_socket_folder)
    if task["cpus"]:
        os.sched_setaffinity(0, task["cpus"])
    settings = ReferenceSettings(**task["settings"])
    log.set_level(settings.log_level)
    worker = RpcWorker(settings)
    log.info(f"rank 0 is process {os.getpid()}")
    signal.signal(signal.SIGTERM, lambda *_: worker.shutdown_event.set())

    def run() -> None:
        worker.run(task["address"], bytes.fromhex(task["key"]))
        log.info("rank 0 has shut down")

    return run


def main() -> None:
    worker_from_standard_input()()


if __name__ == "__main__":
    main()
