"""How many tokens a second one load process on this machine can follow before it comes late."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.selftest import CYCLE_S, OSL, Level

MOST_LAG_MS = 5.0
MOST_SERVER_LATE_MS = 5.0
FIRST_USERS = 256
MOST_USERS = 16_384
_HALVINGS = 2


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The fastest level in time, and the slowest that was not: users, tokens/s and the lag's p99 of each.

    `late` None: no level was late. `server_gave_out`: the paced server was late there, so the client may carry more.
    """

    good: Level | None
    late: Level | None

    @property
    def server_gave_out(self) -> bool:
        return self.late is not None and self.late.server_late_ms > MOST_SERVER_LATE_MS


def tokens_per_s(level: Level) -> float:
    """Return the tokens/s that were really received at a level."""
    return level.users * OSL / CYCLE_S * level.load_kept


def in_time(level: Level) -> bool:
    lag_ms = level.client_lag_p99_ms
    return lag_ms is not None and lag_ms <= MOST_LAG_MS and not level.failed


def find_ceiling(measure: Callable[[int], Level], *, first: int = FIRST_USERS, most: int = MOST_USERS) -> Ceiling:
    """Double the users until the client comes late, then halve the distance twice."""
    good: Level | None = None
    late: Level | None = None
    users = first
    while late is None and users <= most:
        level = measure(users)
        good, late = (level, None) if in_time(level) else (good, level)
        users *= 2
    if good is None or late is None:
        return Ceiling(good, late)
    for _ in range(_HALVINGS):
        level = measure((good.users + late.users) // 2)
        good, late = (level, late) if in_time(level) else (good, level)
    return Ceiling(good, late)


def describe(ceiling: Ceiling) -> Sequence[str]:
    """Say it in words: the ceiling, where it was passed, and what that means."""
    good, late = ceiling.good, ceiling.late
    if good is None:
        assert late is not None
        lag = "unknown" if late.client_lag_p99_ms is None else f"{late.client_lag_p99_ms:.1f} ms"
        return (f"Late already at {late.users} users (lag p99 {lag}): is the machine busy?",)
    level = (
        f"{good.users} users, lag p99 {good.client_lag_p99_ms:.1f} ms, {good.cpu_us_per_token:.1f} us of CPU a token"
    )
    lines = [f"One load process follows {tokens_per_s(good):,.0f} tokens/s in time ({level})."]
    if late is None:
        lines.append(f"No level up to {good.users} users was late.")
    elif late.client_lag_p99_ms is not None:
        lines.append(
            f"At {late.users} users ({tokens_per_s(late):,.0f} tokens/s) its lag p99 is "
            f"{late.client_lag_p99_ms:.1f} ms, past {MOST_LAG_MS:g} ms."
        )
    if late is not None and late.failed:
        lines.append(f"{late.failed} requests failed at {late.users} users.")
    if ceiling.server_gave_out:
        lines.append("The paced server was late there as well: with a core of its own the client may carry more.")
    lines.append("Beyond that use --workers, each on a core of its own.")
    return lines
