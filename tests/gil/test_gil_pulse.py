"""What the sampler says once a second to whoever watches a sweep."""

import json
from dataclasses import replace
from pathlib import Path

from contracts.records import GilRow
from harness.observers.gil.pulse import MOST_THREADS, PulseCounter, PulseThread, latest

MS = 1_000_000
PLAIN = GilRow(
    t_ns=0, locked=True, holder=1, holder_sleeps=False, function=None, waiting=[], runnable=[], running=[], cold=[],
    cold_weight=16, clocked=[], cpu_clock_ns=[], queue_clock_ns=[], switches=0, missed=0, cpu_ns=0, appeared=[],
    names=[], gone=[],
)  # fmt: skip


def test_there_is_a_line_a_second_with_the_counts_of_its_looks(tmp_path: Path) -> None:
    counter = PulseCounter()
    lines = []
    for t in range(0, 2500, 5):
        names = {"appeared": [1, 2, 3], "names": ["loop", "rpc", "idle"]} if t == 0 else {}
        waiting = {"waiting": [2]} if t % 10 == 0 else {"runnable": [2]} if t % 20 == 5 else {}
        line = counter.add(replace(PLAIN, t_ns=t * MS, **waiting, **names))
        if line is not None:
            lines.append(line)
    assert len(lines) == 2
    log = tmp_path / "gil.log"
    log.write_text("a word of warning\n" + "\n".join(lines) + '\n{"pulse": {"t_ns": 1, "loo')
    found = latest(log)
    assert found is not None
    assert found.t_ns == 2000 * MS
    assert found.looks == 200
    assert found.threads == (PulseThread(1, "loop", 0, 200), PulseThread(2, "rpc", 150, 0))


def test_a_rare_look_counts_for_those_it_stands_for_and_only_the_busiest_are_told() -> None:
    counter = PulseCounter()
    tids = list(range(1, 101))
    first = replace(PLAIN, holder=None, waiting=[7], cold=[7], appeared=tids, names=["w"] * 100)
    assert counter.add(first) is None
    line = counter.add(replace(PLAIN, t_ns=1000 * MS, holder=None, waiting=tids))
    assert line is not None
    threads = json.loads(line)["pulse"]["threads"]
    assert len(threads) == MOST_THREADS
    assert threads[0] == [7, "w", 17, 0]


def test_a_log_without_a_pulse_gives_none(tmp_path: Path) -> None:
    log = tmp_path / "gil.log"
    assert latest(log) is None
    log.write_text('error: no such process\n{"looks": 3}\n{"pulse": [1, 2]}\n')
    assert latest(log) is None
