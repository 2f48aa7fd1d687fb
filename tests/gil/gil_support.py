"""Small programs with a known answer, and the interpreters to run them on."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.gil.looks import GilTally, ThreadShare
from harness.observers.gil.sampler import GilSampler

PYENV = Path("/root/.pyenv/versions")
SETTLING_LOOKS = 100
COMMON = """
import hashlib, os, sys, threading, time
def start(name, run):
    threading.Thread(target=run, name=name, daemon=True).start()
def spin():
    n = 0
    while True: n += 1
def locked():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def sleeper():
    while True: time.sleep(30)
def native():
    data = bytes(8_000_000)
    while True: hashlib.sha256(data).digest()
def short():
    while True:
        thread = threading.Thread(target=time.sleep, args=(0.01,)); thread.start(); thread.join()
"""


def interpreters() -> list[str]:
    """This interpreter, Debian's, and pyenv's of the versions that can be watched, as far as they are here."""
    found = [sys.executable]
    found += [str(path) for path in sorted(PYENV.glob("3.1[1-4].*/bin/python3"))]
    if Path("/usr/bin/python3.11").exists():
        found.append("/usr/bin/python3.11")
    return found


@contextmanager
def running(program: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the block ends; it has said `up` when the block begins."""
    code = COMMON + program.replace("UP", "print('up', flush=True)")
    with subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def watch(pid: int, looks: int = 400, *, limit_s: float = 20.0) -> tuple[dict[str, ThreadShare], GilTally, GilSampler]:
    """Look so many times, after some looks in which the target's threads get going; return the threads by name."""
    tally = GilTally()
    begin = time.monotonic()
    with GilSampler(pid) as sampler:
        sampler.settle_names()
        rows = sampler.rows(None, stop=lambda: tally.looks >= looks or time.monotonic() - begin > limit_s)
        for row in itertools.islice(rows, SETTLING_LOOKS):
            tally.name(row)
        for row in rows:
            tally.add(row)
    return {thread.name: thread for thread in tally.threads()}, tally, sampler
