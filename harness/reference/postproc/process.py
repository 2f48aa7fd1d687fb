"""One post-processing process: `python -m harness.reference.postproc.process`, started by rank 0."""

import os
from collections.abc import Sequence
from typing import Any

import zmq

from harness.reference import log
from harness.reference.child import take_task
from harness.reference.frontend.chunks import AnswerWriter
from harness.reference.postproc.pool import READY, Input, Output, input_address, output_address
from harness.reference.rpc.envelope import SealBroken, seal, unseal
from harness.reference.types import ErrorResponse


class Postprocessor:
    """Keeps a writer per request under way, from its first response to its last."""

    def __init__(self, json_library: str) -> None:
        self._json = json_library
        self._writers: dict[int, AnswerWriter] = {}

    @property
    def under_way(self) -> int:
        return len(self._writers)

    def process(self, batch: Sequence[Input]) -> list[Output]:
        """Turn responses into pieces of answers, in the order in which they came; errors pass through."""
        return [self._process_one(item) for item in batch]

    def _process_one(self, item: Input) -> Output:
        response = item.response
        client_id = response.client_id
        if isinstance(response, ErrorResponse):
            self._writers.pop(client_id, None)
            return response
        try:
            if item.form is not None:
                self._writers[client_id] = AnswerWriter(client_id, item.form, self._json)
            formatted = self._writers[client_id].write(response)
        except Exception as error:  # noqa: BLE001 - border of one request: it must not take its batch along
            self._writers.pop(client_id, None)
            return ErrorResponse(client_id, f"post-processing failed: {error!r}", 500)
        if response.is_final:
            del self._writers[client_id]
        return formatted


def _connected(context: Any, kind: int, address: str) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(0)
    socket.connect(address)
    return socket


def main() -> None:
    """Process batches until the process is ended by rank 0, or rank 0 is gone."""
    task = take_task()
    log.set_level(task["log_level"])
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # rank 0's pinning is not ours
    key = bytes.fromhex(task["key"])
    postprocessor = Postprocessor(task["json"])
    context = zmq.Context()
    inputs = _connected(context, zmq.PULL, input_address(task["rpc_address"], task["number"]))
    outputs = _connected(context, zmq.PUSH, output_address(task["rpc_address"]))
    outputs.send(seal(READY, key))
    while True:
        try:
            batch = unseal(inputs.recv(), key)
        except SealBroken as error:
            log.warning(str(error))
            continue
        outputs.send(seal(postprocessor.process(batch), key))


if __name__ == "__main__":
    main()
