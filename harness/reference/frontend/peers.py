"""The front ends of one executor, to each other: a question may reach any of them, and is answered for all."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.reference.rpc.socket import beside


def peer_socket(rpc_address: str, number: int) -> Path:
    """Return where front end `number` can be asked: beside rank 0's socket, in a folder that only we may enter."""
    return Path(beside(rpc_address, f"http{number}").removeprefix("ipc://"))


class Peers:
    """Answers the other front ends' questions and asks them ours; `answers` are by question, all of them JSON."""

    def __init__(self, rpc_address: str, own: int, count: int, answers: Mapping[str, Callable[[], Any]]) -> None:
        self._rpc_address = rpc_address
        self._own = own
        self._count = count
        self._answers = answers
        self._server: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        if self._count > 1:
            self._server = await asyncio.start_unix_server(self._serve, peer_socket(self._rpc_address, self._own))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def ask_all(self, question: str) -> list[Any]:
        """Return every front end's answer in their order; one that is gone is left out."""
        answers = await asyncio.gather(*(self.ask(number, question) for number in range(self._count)))
        return [answer for answer in answers if answer is not None]

    async def ask(self, number: int, question: str) -> Any:
        """Return one front end's answer; None when it is gone."""
        if number == self._own:
            return self._answers[question]()
        with contextlib.suppress(OSError, ValueError):
            reader, writer = await asyncio.open_unix_connection(peer_socket(self._rpc_address, number))
            try:
                writer.write(question.encode() + b"\n")
                return json.loads(await reader.read())
            finally:
                writer.close()
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = self._answers.get((await reader.readline()).decode().strip())
            if answer is not None:
                writer.write(json.dumps(answer()).encode())
                await writer.drain()
        except ConnectionError:
            pass  # it asked and left
        finally:
            writer.close()
