"""Locust users: each sends its next request when its last one is over, or when one is due. Importing this patches.

A locustfile of one's own subclasses `LlmUser` and asks in its tasks; see docs/load.md.
"""

import json
from collections.abc import Sequence
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
from loadgen.workload.prompts import USER, Message
from loadgen.workload.synthetic import Draw


class LoadEnvironment(Environment):
    """Locust's environment, with what our users share."""

    def __init__(self, crew: Crew, *user_classes: type["LoadUser"], request_type: str = "POST") -> None:
        super().__init__(user_classes=list(user_classes))
        self.crew = crew
        self.request_type = request_type


class LoadUser(User):
    """What all our users have. Locust's events are fired for its own tools; the records are the recorder's."""

    abstract = True

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
        self._there = False
        self._first = True

    def on_stop(self) -> None:
        self._caller.close()

    def ask_next(self) -> Outcome:
        """Send the workload's next request and wait for its end; a failure is an outcome and no exception.

        Raises locust's StopUser, which ends a user's task, when the load stops or no request is left.
        """
        self._await_place()
        draw = self._crew.next_request(self._requests, self._answer_tokens)
        if draw is None:
            self._crew.leave(began=self._began)
            raise StopUser
        self._began = True
        due_ns = None
        if self._crew.schedule is not None:
            due_ns = self._crew.await_due(draw)
            if due_ns is None:
                raise StopUser
        return self._send(draw, due_ns)

    def _await_place(self) -> None:
        if not self._there:
            self._there = True
            self._crew.await_turn(self._index)
            if self._crew.schedule is not None:
                self._crew.first_tried()
        self._crew.await_place(self._index)
        if self._crew.stopping:
            raise StopUser

    def _send(self, draw: Draw, due_ns: int | None) -> Outcome:
        """Send one request; in closed loop think afterwards, or wait when it failed."""
        crew = self._crew
        outcome = self._one(draw, due_ns)
        if due_ns is not None:
            return outcome
        if outcome.error_kind in (None, kinds.ABORTED):
            self._failures = 0
            pause_s = crew.habits.pause_s(crew.workload, draw)
        else:
            self._failures += 1
            pause_s = backoff_s(self._failures)
        if pause_s and not crew.stopping:
            gevent.sleep(pause_s)
        return outcome

    def _one(self, draw: Draw, due_ns: int | None) -> Outcome:
        crew = self._crew
        first, self._first = self._first and due_ns is None, False
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
            request_type=self.environment.request_type,
            name=crew.name,
            response_time=(outcome.end_ns - outcome.sent_ns) / NS_PER_MS,
            response_length=outcome.received_bytes,
            exception=outcome.error_kind,
            context={},
        )
        return outcome


class WorkloadUser(LoadUser):
    """Sends what the workload gives, one request after the other."""

    @task
    def request(self) -> None:
        self.ask_next()


class LlmUser(LoadUser):
    """The base of users in a locustfile. Closed loop: a task asks, reads the outcome, asks again.

    Every request is recorded, timed and counted like any other. After failures a user waits, 0.1 s to 1 s, and between
    requests users come and go with the load, so tasks need to do nothing for either. `on_start` is free for use, and an
    `on_stop` calls ours, which closes the connection.
    """

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._asked = 0

    def ask(self, prompt: str | Sequence[tuple[str, str]], max_tokens: int) -> Outcome:
        """Send a prompt, a text or (role, text) pairs, and wait for the answer's end.

        The outcome has `error_kind` (None: it went well), `output_tokens`, `chunk_ns` (arrivals of tokens) and more,
        but no text. `prompt_tokens` is 0 in the records: not known here. Raises locust's StopUser when the load stops.
        """
        self._await_place()
        said = [(USER, prompt)] if isinstance(prompt, str) else prompt
        messages = tuple(Message(role, json.dumps(text)[1:-1].encode()) for role, text in said)
        draw = Draw(self._crew.first_user + self._index, self._asked, 0, max_tokens, (), messages=messages)
        self._asked += 1
        return self._send(draw, None)


REQUEST_TYPES = {"http": "POST", "rpc": "RPC"}
