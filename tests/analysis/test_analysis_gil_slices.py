"""The interval that a wait share gives itself: it holds the true share about as often as it says."""

import random
from dataclasses import replace

import pytest

from analysis.gil.looks import GilTally
from analysis.gil.slices import FEWEST, LOOKS, MOST, Slices
from contracts.records import GilRow

WAITER, HOLDER = 1, 2
LOOK_NS = 5_000_000


def row(t_ns: int, *, waits: bool, clock: tuple[int, int] | None = None) -> GilRow:
    """Make one look at two threads; `clock` is the waiter's exact time on a core and in the queue for one."""
    return GilRow(
        t_ns=t_ns, locked=True, holder=HOLDER if waits else WAITER, holder_sleeps=False, function="f",
        waiting=[WAITER] if waits else [], runnable=[], running=[], cold=[], cold_weight=16,
        clocked=[] if clock is None else [WAITER], cpu_clock_ns=[] if clock is None else [clock[0]],
        queue_clock_ns=[] if clock is None else [clock[1]], switches=0, missed=0, cpu_ns=0,
        appeared=[], names=[], gone=[],
    )  # fmt: skip


def waits_of(rng: random.Random, looks: int, share: float, length: float) -> list[bool]:
    """Simulate a thread that waits and runs in turns; waits last `length` looks on the average."""
    flags, waiting = [], rng.random() < share
    for _ in range(looks):
        flags.append(waiting)
        leave = 1 / length if waiting else share / (1 - share) / length
        waiting ^= rng.random() < leave
    return flags


@pytest.mark.parametrize(("share", "length"), [(0.5, 1.5), (0.2, 4.0), (0.8, 6.0)])
def test_the_interval_of_a_plain_share_holds_the_true_one_as_often_as_it_says(share: float, length: float) -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(400):
        slices = Slices()
        flags = waits_of(rng, 1000, share, length)
        for waits in flags:
            slices.add([(WAITER, 1.0)] if waits else [], [], [])
        error = slices.error(WAITER, None)
        assert error is not None
        held += abs(sum(flags) / len(flags) - share) <= error
    assert 0.89 <= held / 400 <= 0.99


def test_exact_clocks_make_the_interval_of_a_thread_that_sleeps_nowhere_else_vanish() -> None:
    rng = random.Random(3)
    tally = GilTally()
    ran_ns = 0
    for look, waits in enumerate(waits_of(rng, 1000, 0.5, 3.0)):
        tally.add(row(look * LOOK_NS, waits=waits, clock=(ran_ns, 0)))
        ran_ns += 0 if waits else LOOK_NS
    tally.name(replace(row(0, waits=False), appeared=[WAITER], names=["loop"]))
    (loop,) = tally.threads()
    assert loop.error == pytest.approx(0.0, abs=1e-9)
    assert loop.wait == pytest.approx(1 - ran_ns / (1000 * LOOK_NS), abs=2e-3)


def test_a_thread_never_found_waiting_and_too_few_looks_have_no_interval() -> None:
    slices = Slices()
    for _ in range(LOOKS * FEWEST):
        slices.add([(WAITER, 1.0)], [], [(HOLDER, 1.0)])
    assert slices.error(HOLDER, None) is None
    assert slices.error(WAITER, None) is not None
    few = Slices()
    for _ in range(LOOKS * (FEWEST - 1)):
        few.add([(WAITER, 1.0)], [], [])
    assert few.error(WAITER, None) is None


def test_a_long_observation_keeps_a_bounded_number_of_slices_and_its_interval_shrinks() -> None:
    rng = random.Random(5)
    slices, errors = Slices(), []
    for look, waits in enumerate(waits_of(rng, 8 * LOOKS * MOST, 0.4, 2.0), 1):
        slices.add([(WAITER, 1.0)] if waits else [], [], [])
        if look in {LOOKS * MOST, 8 * LOOKS * MOST}:
            errors.append(slices.error(WAITER, None))
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[1] < 0.6 * errors[0]
    assert len(slices) <= MOST
