"""Locust's own page while a load runs: to look at, on loopback, and not to steer by. Importing this patches."""

import socket
from typing import Any

import gevent
from locust.stats import stats_history

from contracts.errors import UsageError

HOST = "127.0.0.1"


class WebPage:
    """Serves the page of an environment until it is closed. Raises UsageError when the port is taken."""

    def __init__(self, environment: Any, port: int) -> None:
        try:
            socket.create_server((HOST, port)).close()
        except OSError as error:
            raise UsageError(f"--web-ui {port}: cannot listen at {HOST}:{port}: {error}") from error
        self._page = environment.create_web_ui(HOST, port, delayed_start=True)
        self._page.app.before_request(_only_look)
        self._page.start()
        self._history = gevent.spawn(stats_history, environment.runner)

    def close(self) -> None:
        self._history.kill()
        self._page.stop()


def _only_look() -> tuple[str, int] | None:
    """Refuse what would start, stop or reset something: every such request is a POST."""
    from flask import request

    if request.method in ("GET", "HEAD"):
        return None
    return "This load is led by the loadgen command that started it: press Ctrl-C there.", 405
