"""Whether a server fails everything, so that a load against it can end early and say so.

The rule: for `span_s` no request has succeeded and no token has come, at least `least` requests have failed, and none
is in flight that began before the first of those failures. So it cannot hold while anything succeeds now and then, nor
while anything is still being waited for: an overloaded server is measured, not given up.
"""

from collections import Counter

from contracts.clock import NS_PER_S
from loadgen import kinds

LEAST_FAILURES = 20
FAILURES_A_USER = 3
_NOT_THE_SERVERS = frozenset((kinds.ABORTED, kinds.CANCELLED, kinds.UNFINISHED))


class FailingRule:
    """Fed with every end and every first token; times are CLOCK_MONOTONIC ns. `span_s` 0 never holds."""

    def __init__(self, span_s: float, least: int = LEAST_FAILURES) -> None:
        self._span_ns = int(span_s * NS_PER_S)
        self._least = least
        self._since_ns: int | None = None
        self._kinds: Counter[str] = Counter()
        self._last = ""

    def alive(self) -> None:
        """Note a token or a success."""
        if self._since_ns is not None:
            self._since_ns = None
            self._kinds.clear()

    def ended(self, kind: str | None, error: str | None, now_ns: int) -> None:
        """Note how a request ended."""
        if kind is None or kind == kinds.ABORTED:
            self.alive()
        elif kind not in _NOT_THE_SERVERS:
            if self._since_ns is None:
                self._since_ns = now_ns
            self._kinds[kind] += 1
            self._last = error or ""

    def verdict(self, now_ns: int, oldest_ns: int | None) -> str | None:
        """Say what fails, in words, if everything does; `oldest_ns` is when the oldest request in flight began."""
        since_ns = self._since_ns
        if not self._span_ns or since_ns is None or now_ns - since_ns < self._span_ns:
            return None
        count = self._kinds.total()
        if count < self._least or (oldest_ns is not None and oldest_ns < since_ns):
            return None
        kinds_seen = ", ".join(f"{number} {kind}" for kind, number in self._kinds.most_common())
        last = f"; the last: {self._last}" if self._last else ""
        return f"{count} requests in {(now_ns - since_ns) / NS_PER_S:.0f} s, all failed ({kinds_seen}){last}"
