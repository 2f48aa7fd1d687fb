"""Locust users in closed loop: each sends its next request when its last one is over. Importing this patches."""

from time import monotonic_ns
from typing import Any

import gevent
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from contracts.clock import NS_PER_MS
from loadgen.crew import Crew, backoff_s
from loadgen.outcome import Cancel, Outcome


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
        self._n = 0
        self._failures = 0

    def on_start(self) -> None:
        self._crew.await_turn(self._index)

    def on_stop(self) -> None:
        self._caller.close()

    @task
    def request(self) -> None:
        if self._crew.stopping:
            raise StopUser
        outcome = self._one()
        if outcome.error_kind is None:
            self._failures = 0
        elif not self._crew.stopping:
            self._failures += 1
            gevent.sleep(backoff_s(self._failures))

    def _one(self) -> Outcome:
        crew, n = self._crew, self._n
        self._n += 1
        draw = crew.workload.draw(crew.first_user + self._index, n)
        ticket = crew.recorder.begin()
        tried_ns = monotonic_ns()
        told = False

        def sent(cancel: Cancel) -> None:
            nonlocal told
            ticket.cancel = cancel
            told = True
            if n == 0:
                crew.first_tried()

        try:
            outcome = self._caller.ask(draw, sent, crew.recorder.first_token)
        except gevent.GreenletExit:
            ticket.end(draw, Outcome(tried_ns, monotonic_ns(), error_kind=crew.cut_kind, error=crew.cut_message))
            raise
        ticket.end(draw, outcome)
        if n == 0 and not told:
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
