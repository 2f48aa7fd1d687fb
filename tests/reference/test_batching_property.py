"""No request is lost, doubled or overtaken, whatever order adds, timers, aborts and failures come in."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from harness.reference.batching import SubmitBatcher
from harness.reference.types import GenerationRequest, SamplingParams


class StepLoop:
    """An event loop's timers, fired by hand; what is called soon is called now."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], Any]] = []

    def call_soon_threadsafe(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)

    def call_later(self, _: float, function: Callable[..., Any], *args: Any) -> None:
        self.timers.append(lambda: function(*args))


class StepClient:
    """Keeps the batches in the order in which they were sent, or fails to send them."""

    def __init__(self) -> None:
        self.sent: list[list[int | None]] = []
        self.failing = False

    def method(self, name: str, batch: Sequence[GenerationRequest]) -> "StepClient":
        assert name == "submit_batch"
        self._batch = [request.id for request in batch]
        return self

    def remote(self, *, need_response: bool) -> None:
        assert not need_response
        if self.failing:
            raise RuntimeError("closed")
        self.sent.append(self._batch)

    def remote_future(self, *, need_response: bool) -> "Future[None]":
        future: Future[None] = Future()
        try:
            future.set_result(self.remote(need_response=need_response))
        except RuntimeError as error:
            future.set_exception(error)
        return future


class Batching(RuleBasedStateMachine):
    ids = Bundle("ids")

    @initialize(max_size=st.integers(1, 5))
    def begin(self, max_size: int) -> None:
        self.max_size = max_size
        self.loop, self.client = StepLoop(), StepClient()
        self.failed: list[int] = []
        self.added = 0
        self.batcher = SubmitBatcher(
            self.client,  # type: ignore[arg-type]
            self.loop,  # type: ignore[arg-type]
            max_size=max_size,
            delay_s=1.0,
            on_failure=lambda ids, _: self.failed.extend(ids),
        )

    @rule(target=ids)
    def add(self) -> int:
        self.added += 1
        request = GenerationRequest([1], SamplingParams(), streaming=True, arrival_time=0.0).set_id(self.added)
        self.batcher.add(request)
        return self.added

    @rule(client_id=ids)
    def abort(self, client_id: int) -> None:
        self.batcher.flush_if_holding(client_id)
        assert client_id in self._gone(), "what is said about it next finds it there"

    @rule(which=st.integers(0, 10))
    def fire_a_timer(self, which: int) -> None:
        if self.loop.timers:
            self.loop.timers.pop(which % len(self.loop.timers))()

    @rule(failing=st.booleans())
    def break_or_mend_the_client(self, failing: bool) -> None:
        self.client.failing = failing

    def _sent(self) -> list[int | None]:
        return [client_id for batch in self.client.sent for client_id in batch]

    def _gone(self) -> set[int | None]:
        return {*self._sent(), *self.failed}

    @invariant()
    def each_request_is_held_sent_or_failed_once_and_in_order(self) -> None:
        held = [request.id for request in self.batcher._held]
        assert self._sent() == sorted(self._sent())
        assert sorted([*self._sent(), *self.failed, *held]) == list(range(1, self.added + 1))
        assert len(held) < self.max_size
        assert all(0 < len(batch) <= self.max_size for batch in self.client.sent)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        while self.loop.timers:
            self.loop.timers.pop()()
        assert self._gone() == set(range(1, self.added + 1)), "a timer was there for what was held"


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
