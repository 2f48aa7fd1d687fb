"""`loadgen run --workers-from` with `loadgen worker`s: on loopback, in namespaces of their own, and with one killed."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.arrow import read_table
from contracts.folder import SweepFolder
from contracts.records import REQUESTS

pytestmark = pytest.mark.stack

SECRET = uuid.uuid4().hex
LOADGEN = [sys.executable, "-m", "loadgen.cli.main"]
RUN = ["run", "--url", "http://127.0.0.1:9", "--model", "m"]
LATER_S = 100_000  # how much later the clock of a worker in a time namespace is
SOME_RECORDS = 8_000  # bytes: more than a file without rows has


def start(
    words: Sequence[str], log: Path, *, inside: Sequence[str] = (), secret: str = SECRET
) -> "subprocess.Popen[str]":
    with open(log, "w") as output:
        return subprocess.Popen(
            [*inside, *words], stdout=subprocess.PIPE, stderr=output, text=True,
            env={**os.environ, "LOADGEN_WORKER_SECRET": secret, "TMPDIR": str(log.parent)},
        )  # fmt: skip


def await_text(log: Path, pattern: str, timeout_s: float = 60) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        match = re.search(pattern, log.read_text() if log.exists() else "")
        if match:
            return match[1]
        time.sleep(0.05)
    raise AssertionError(f"{pattern!r} never came in {log}: {log.read_text()}")


@contextlib.contextmanager
def paced(folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> Iterator[str]:
    words = [*inside, sys.executable, "-m", "loadgen.paced", str(folder / "truth"), "--host", host]
    words += ["--first-ms", "20", "--gap-ms", "5"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://{host}:{server.stdout.readline().strip()}"
        server.communicate()


class Rig:
    """A master and its workers; whatever is still there at the end is ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "sweep"
        self.processes: list[subprocess.Popen[str]] = []

    def master(self, url: str, *words: str, bind: str = "127.0.0.1", inside: Sequence[str] = ()) -> str:
        """Start the run; give the port at which it waits for workers."""
        command = [*LOADGEN, "run", "--url", url, "--model", "m", "--isl", "20", "--osl", "8", "--warmup", "0.3"]
        command += ["--no-observe", "--workers-from", "2", "--bind", f"{bind}:0", "--out", str(self.out), *words]
        self.processes.append(start(command, self.folder / "master.log", inside=inside))
        return await_text(self.folder / "master.log", r"--master \S+:(\d+)")

    def worker(
        self, name: str, master: str, inside: Sequence[str] = (), secret: str = SECRET
    ) -> "subprocess.Popen[str]":
        words = [*LOADGEN, "worker", "--master", master]
        self.processes.append(start(words, self.folder / f"{name}.log", inside=inside, secret=secret))
        return self.processes[-1]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.communicate()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.end()


def shown(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(subprocess.check_output([*LOADGEN, "show", str(out), "--json"], text=True))
    return document


def strays() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            ours = entry.name.isdigit() and SECRET.encode() in (entry / "environ").read_bytes()
            if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def await_records(out: Path, count: int, timeout_s: float = 60) -> None:
    """Wait until so many load processes' requests have come in."""
    deadline = time.monotonic() + timeout_s
    while sum(path.stat().st_size > SOME_RECORDS for path in out.glob("cells/*/requests*.arrow")) < count:
        assert time.monotonic() < deadline, [*out.rglob("*")]
        time.sleep(0.05)


def run_namespaces(rig: Rig, url: str, places: dict[str, Sequence[str]], masters: dict[str, str], bind: str) -> None:
    port = rig.master(url, "--remote", "--concurrency", "9", "--duration", "2", bind=bind, inside=places["master"])
    for name in ("one", "two"):
        rig.worker(name, f"{masters[name]}:{port}", inside=places[name])
    assert [process.wait(90) for process in rig.processes] == [0, 0, 0], (rig.folder / "master.log").read_text()


@pytest.fixture
def namespaces() -> Iterator[dict[str, Sequence[str]]]:
    """Make three network namespaces, the master's joined to each worker's by a pair of virtual interfaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip")
    mark = uuid.uuid4().hex[:6]
    names = {name: f"lg{mark}{name}" for name in ("master", "one", "two")}
    try:
        made = subprocess.run(["ip", "netns", "add", names["master"]], capture_output=True, check=False)
        if made.returncode:
            pytest.skip(f"no network namespaces here: {made.stderr.decode().strip()}")
        ip(names["master"], "link", "set", "lo", "up")
        ip(names["master"], "addr", "add", "10.201.0.1/32", "dev", "lo")
        for number, name in enumerate(("one", "two"), 1):
            subprocess.run(["ip", "netns", "add", names[name]], check=True)
            peer = ["peer", "name", "eth0", "netns", names[name]]
            ip(names["master"], "link", "add", f"eth{number}", "type", "veth", *peer)
            ip(names["master"], "addr", "add", f"10.201.{number}.1/24", "dev", f"eth{number}")
            ip(names["master"], "link", "set", f"eth{number}", "up")
            ip(names[name], "addr", "add", f"10.201.{number}.2/24", "dev", "eth0")
            ip(names[name], "link", "set", "eth0", "up")
            ip(names[name], "route", "add", "default", "via", f"10.201.{number}.1")
        yield {name: ["ip", "netns", "exec", space] for name, space in names.items()}
    finally:
        for space in names.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
    left = subprocess.check_output(["ip", "netns", "list"], text=True)
    assert not [space for space in names.values() if space in left]


def ip(space: str, *words: str) -> None:
    subprocess.run(["ip", "-n", space, *words], check=True)


def later() -> list[str]:
    """Give the prefix that runs a command with a clock that is far ahead; empty where that is not permitted."""
    words = ["unshare", "--time", "--monotonic", str(LATER_S), "--fork", "--kill-child"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return words


def test_two_machines_put_one_load_together_and_their_clocks_are_brought_onto_one(
    rig: Rig, namespaces: dict[str, Sequence[str]]
) -> None:
    ahead = later()
    places = {**namespaces, "two": [*namespaces["two"], *ahead]}
    with paced(rig.folder, "10.201.0.1", namespaces["master"]) as url:
        run_namespaces(rig, url, places, {"one": "10.201.1.1", "two": "10.201.2.1"}, bind="0.0.0.0")
    (folder,) = SweepFolder(rig.out).cell_folders()
    info = folder.read()
    assert info.state == "done"
    assert set(info.load_machines) == {"load", "load1"}
    users = [set(read_table(path, REQUESTS)["user"].to_pylist()) for path in folder.all_requests()]
    assert sorted(users[0] | users[1]) == list(range(9))
    (cell,) = shown(rig.out)["cells"]
    assert cell["errors"] == 0
    assert 7 < cell["metrics"]["in_flight_mean"] <= 9, "both machines' requests lie in the window of this one's clock"
    one, two = sorted(cell["clocks"].values(), key=lambda clock: clock["offset_ms"])  # named as they came
    assert abs(one["offset_ms"]) <= one["error_ms"], "one kernel has one clock"
    assert abs(two["offset_ms"] - (LATER_S * 1000 if ahead else 0)) <= two["error_ms"]
    assert "to within" in (rig.out / "report.html").read_text(), "the report states the clocks with their error"
    assert strays() == []


def test_a_machine_that_dies_loses_only_what_it_had_not_sent_and_the_result_says_so(rig: Rig) -> None:
    with paced(rig.folder) as url:
        port = rig.master(url, "--concurrency", "8", "--duration", "4")
        workers = [rig.worker(name, f"127.0.0.1:{port}") for name in ("one", "two")]
        await_records(rig.out, count=2)
        workers[0].send_signal(signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        assert rig.processes[0].wait(90) == 0, (rig.folder / "master.log").read_text()
        assert workers[1].wait(30) == 0
    document = shown(rig.out)
    assert "worker_lost" in {warning["code"] for warning in document["warnings"]}
    (cell,) = document["cells"]
    assert cell["state"] == "done"
    assert cell["metrics"]["ttft_ms"]["n"] > 20
    (folder,) = SweepFolder(rig.out).cell_folders()
    ends = [max(read_table(path, REQUESTS)["end_ns"].to_pylist()) for path in folder.all_requests()]
    assert len(ends) == 2
    assert killed_ns - min(ends) < 10_000_000_000
    assert list(rig.folder.glob("loadgen-worker-*")) == []
    assert strays() == []


def test_a_worker_with_another_secret_is_not_let_in_and_none_is_written_down(rig: Rig) -> None:
    with paced(rig.folder) as url:
        port = rig.master(url, "--concurrency", "4", "--duration", "1")
        stranger = rig.worker("stranger", f"127.0.0.1:{port}", secret="another secret of some length")
        for name in ("one", "two"):
            rig.worker(name, f"127.0.0.1:{port}")
        assert rig.processes[0].wait(90) == 0, (rig.folder / "master.log").read_text()
        assert stranger.poll() is None, "nobody answered it"
    assert "taken this machine in" not in (rig.folder / "stranger.log").read_text()
    for path in rig.out.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["worker", "--master", "nowhere"], "expected HOST:PORT"),
        (["worker", "--master", "127.0.0.1:5557"], "LOADGEN_WORKER_SECRET"),
        (["worker", "--master", "127.0.0.1:5557", "--secret-file", "/nowhere"], "/nowhere"),
        (["run", "--url", "http://127.0.0.1:9", "--model", "m", "--workers-from", "2", "--bind", ":x"], "--bind"),
        (
            ["run", "--url", "http://127.0.0.1:9", "--model", "m", "--workers-from", "2", "--workers", "2"],
            "one of them",
        ),
    ],
)
def test_bad_input_is_said_with_status_2(words: list[str], complaint: str) -> None:
    done = subprocess.run([*LOADGEN, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert complaint in done.stderr
