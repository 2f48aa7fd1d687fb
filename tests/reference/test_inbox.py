"""The inbox of one HTTP answer: order, waiting, and turns for the others on its loop."""

import asyncio

from harness.reference.frontend.generation import TURN_EVERY, _Inbox
from harness.reference.types import ErrorResponse, Response


def test_an_answer_that_is_always_ready_lets_the_others_run() -> None:
    async def scenario() -> int:
        inbox = _Inbox()
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        for n in range(4 * TURN_EVERY):
            inbox.put(Response(1, [n], n))
        taken = 0
        while not ran.is_set():
            response = await inbox.get()
            assert isinstance(response, Response)
            assert response.token_ids == [taken]
            taken += 1
        return taken

    assert asyncio.run(scenario()) <= TURN_EVERY


def test_an_error_comes_before_what_is_unread() -> None:
    async def scenario() -> object:
        inbox = _Inbox()
        for n in range(1_000):
            inbox.put(Response(1, [n], n))
        await inbox.get()
        inbox.put(ErrorResponse(1, "the server is stopping", 503))
        return await inbox.get()

    assert asyncio.run(scenario()) == ErrorResponse(1, "the server is stopping", 503)


def test_an_error_wakes_who_waits() -> None:
    async def scenario() -> object:
        inbox = _Inbox()
        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        inbox.put(ErrorResponse(1, "lost"))
        inbox.wake()
        return await waiting

    assert asyncio.run(scenario()) == ErrorResponse(1, "lost")
