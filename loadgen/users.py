"""Locust users: each sends its next request when its last one is over, or when one is due. Importing this patches."""

from time import monotonic_ns
from typing import Any

import gevent
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from contracts.clock import NS_PER_MS
from loadgen import kinds
from loadgen.crew import Crew, backoff_s
from loadgen.outcome import Cancel, Outcome
from loadgen.workload import Draw


class LoadEnvironment(Environment):
    """Locust's environment, with what our users share."""

    def __init__(self, crew: Crew, user_class: type["LoadUser"]) -> None:
        super().__init__(user_classes=[user_class])
        self.crew = crew


class LoadUser(User):
    """What both drives' users do. Locust's events are fired for its own tools; the records are the recorder's."""

    abstract = True
    request_type = ""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        crew: Crew = environment.crew
        self._crew = crew
        self._index = crew.next_index()
        self._caller = crew.make_caller()
        self._requests = crew.workload.requests(crew.first_user + self._index)
        self._answer_tokens: int | None = None
        self._failures = 0
        self._began = False

    def on_start(self) -> None:
        self._crew.await_turn(self._index)
        if self._crew.schedule is not None:
            self._crew.first_tried()

    def on_stop(self) -> None:
        self._caller.close()

    @task
    def request(self) -> None:
        crew = self._crew
        crew.await_place(self._index)
        if crew.stopping:
            raise StopUser
        draw = crew.next_request(self._requests, self._answer_tokens)
        if draw is None:
            crew.leave(began=self._began)
            raise StopUser
        self._began = True
        if crew.schedule is not None:
            due_ns = crew.await_due(draw)
            if due_ns is None:
                raise StopUser
            self._one(draw, due_ns)
            return
        outcome = self._one(draw, None)
        if outcome.error_kind in (None, kinds.ABORTED):
            self._failures = 0
            pause_s = crew.habits.pause_s(crew.workload, draw)
        else:
            self._failures += 1
            pause_s = backoff_s(self._failures)
        if pause_s and not crew.stopping:
            gevent.sleep(pause_s)

    def _one(self, draw: Draw, due_ns: int | None) -> Outcome:
        crew = self._crew
        first = draw.n == 0 and due_ns is None
        ticket = crew.recorder.begin()
        tried_ns = monotonic_ns()
        told = False

        def sent(cancel: Cancel) -> None:
            nonlocal told
            ticket.cancel = cancel
            told = True
            if first:
                crew.first_tried()

        try:
            cut_after = crew.habits.cut_after(crew.workload, draw)
            outcome = self._caller.ask(draw, sent, crew.recorder.first_token, cut_after)
        except gevent.GreenletExit:
            cut = Outcome(tried_ns, monotonic_ns(), error_kind=crew.cut_kind, error=crew.cut_message)
            ticket.end(draw, cut, due_ns)
            raise
        ticket.end(draw, outcome, due_ns)
        self._answer_tokens = outcome.output_tokens if outcome.error_kind in (None, kinds.ABORTED) else None
        if first and not told:
            crew.first_tried()
        self.environment.events.request.fire(
            request_type=self.request_type,
            name=crew.name,
            response_time=(outcome.end_ns - outcome.sent_ns) / NS_PER_MS,
            response_length=outcome.received_bytes,
            exception=outcome.error_kind,
            context={},
        )
        return outcome


class HttpStreamUser(LoadUser):
    """Streams from an OpenAI-compatible server."""

    request_type = "POST"


class DirectUser(LoadUser):
    """Submits to the reference stack's proxy without HTTP."""

    request_type = "RPC"


USERS = {"http": HttpStreamUser, "rpc": DirectUser}
