"""`loadgen sweep` as a user runs it, in miniature."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from contracts.arrow import read_table
from contracts.folder import SweepFolder
from contracts.records import CLIENT, HOST, REQUESTS, SERVER, STEPS
from loadgen.cli.main import build_parser
from loadgen.cli.presets import with_preset
from loadgen.cli.sweep import plan_from

pytestmark = pytest.mark.stack

TAG = f"LOADGEN_TEST_RUN={uuid.uuid4().hex}"
os.environ.update([TAG.split("=")])
LOADGEN = [sys.executable, "-m", "loadgen.cli.main"]
SMALL = [
    "--isl", "40", "--osl", "6", "--duration", "1", "--warmup", "0.2", "--concurrency", "6", "--repeats", "1",
    "--set", "TLLM_RPC_SUBMIT_BATCH_MAX=1,4", "--set", "REFSTACK_DEVICE_BASE_MS=2",
]  # fmt: skip


def loadgen(*words: str, timeout: float = 120, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*LOADGEN, *words], capture_output=True, text=True, timeout=timeout, env={**os.environ, **env}, check=False
    )


def stray_processes() -> list[str]:
    """Processes that a command of this test run started and that are still there; other runs' are not ours to judge."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                ours = TAG.encode() in (entry / "environ").read_bytes()
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if ours and not zombie and re.search(r"harness\.(reference|guard)|loadgen\.process|py-spy record", words):
                found.append(words)
    return found


def test_a_preset_gives_way_to_what_is_said_beside_it() -> None:
    words = with_preset("claims", ["--concurrency", "9", "--set", "REFSTACK_GC=off"], ["REFSTACK_GC=off"])
    parser = build_parser("sweep")
    options = parser.parse_args(["sweep", *words])
    plan = plan_from(options)
    assert plan.concurrency == [9]
    assert plan.design == "one_at_a_time"
    assert plan.factors["REFSTACK_GC"] == ["off"]
    assert plan.factors["REFSTACK_TOKEN_IDS"] == ["list", "int32"]


def no_strays(within_s: float = 8.0) -> bool:
    deadline = time.monotonic() + within_s
    while stray_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not stray_processes()


@pytest.mark.parametrize("drive", ["rpc", "http"])
def test_a_sweep_leaves_records_a_report_and_nothing_else(tmp_path: Path, drive: str) -> None:
    out = tmp_path / "sweep"
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        done = loadgen("sweep", *SMALL, "--drive", drive, "--out", str(out), TMPDIR=temporary)
        assert list(Path(temporary).iterdir()) == [], "sockets and temporary folders are gone"
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("report.html")
    assert re.search(
        r"^cell 1 of 2, c6 .*: done after \d+ s, [\d,]+ requests done, 0 failed; about", done.stderr, re.MULTILINE
    )
    assert "\x1b" not in done.stderr
    assert no_strays()
    sweep = SweepFolder(out)
    assert len(sweep.cell_folders()) == 2
    for folder in sweep.cell_folders():
        info = folder.read()
        assert (info.state, info.error) == ("done", None)
        assert info.stacks is not None
        requests = read_table(folder.requests(), REQUESTS).to_pandas()
        assert requests["error_kind"].isna().all()
        assert (requests["output_tokens"] == requests["max_tokens"]).all()
        assert read_table(folder.steps, STEPS).num_rows > 10
        assert read_table(folder.client(), CLIENT).num_rows > 10
        roles = set(read_table(folder.host, HOST).to_pandas()["role"])
        assert {"rank0", "proxy", "load"} <= roles
        told = set(read_table(folder.server, SERVER).to_pandas()["server_id"])
        assert set(requests["server_id"]) <= told


def test_show_gives_the_contracts_json(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    assert loadgen("sweep", *SMALL, "--no-observe", "--workers", "2", "--out", str(out)).returncode == 0
    shown = json.loads(loadgen("show", str(out), "--json").stdout)
    assert shown["format"] == 1
    assert {cell["knobs"]["TLLM_RPC_SUBMIT_BATCH_MAX"] for cell in shown["cells"]} == {"1", "4"}
    for cell in shown["cells"]:
        metrics = cell["metrics"]
        assert {"id", "block", "state", "concurrency", "requests", "errors"} <= cell.keys()
        assert metrics["ttft_ms"]["p50"] > 0
        assert metrics["rpc_requests"] >= metrics["rpc_messages"] > 0
        if cell["knobs"]["TLLM_RPC_SUBMIT_BATCH_MAX"] == "1":
            assert metrics["rpc_requests"] == metrics["rpc_messages"]
        assert metrics["in_flight_mean"] > 4
    assert "few_repeats" in {warning["code"] for warning in shown["warnings"]}


def test_the_window_can_end_by_a_number_of_requests(tmp_path: Path) -> None:
    words = [*SMALL]
    at = words.index("--duration")
    words[at : at + 2] = ["--requests", "120"]
    assert loadgen("sweep", *words, "--no-observe", "--out", str(tmp_path / "s")).returncode == 0
    for folder in SweepFolder(tmp_path / "s").cell_folders():
        info = folder.read()
        table = read_table(folder.requests(), REQUESTS).to_pandas()
        inside = table[(table["sent_ns"] >= info.phases.steady_start_ns) & (table["end_ns"] <= info.phases.drained_ns)]
        assert len(inside) >= 120


def begin(out: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*LOADGEN, "sweep", *words, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_second_cell(out: Path) -> None:
    """Wait until the first cell is done and the second is in its window."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        folders = SweepFolder(out).cell_folders() if (out / "cells").exists() else []
        if len(folders) >= 2 and (folders[1].path / "requests.arrow").exists():
            time.sleep(0.4)  # of 1.2 s that it will load at least
            return
        time.sleep(0.05)
    raise AssertionError("the second cell never began")


def states(out: Path) -> list[str]:
    return [folder.read().state for folder in SweepFolder(out).cell_folders()]


def test_a_killed_sweep_keeps_its_finished_cells_leaves_nothing_running_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "s"
    process = begin(out, *SMALL)
    wait_for_second_cell(out)
    process.kill()
    process.communicate()
    assert no_strays()
    assert states(out) == ["done", "running"]
    first = SweepFolder(out).cell_folders()[0].json.read_text()
    assert loadgen("report", str(out)).returncode == 0
    done = loadgen("sweep", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert states(out) == ["done", "done"]
    assert SweepFolder(out).cell_folders()[0].json.read_text() == first, "what was done is not run again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_with_a_report_of_what_was_done(tmp_path: Path, number: int) -> None:
    out = tmp_path / "s"
    process = begin(out, *SMALL)
    wait_for_second_cell(out)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in text
    assert (out / "report.html").exists()
    assert states(out) == ["done", "partial"]
    assert no_strays()


def child_of(parent: int, word: bytes) -> int:
    """Find the child process whose command line has `word`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                ppid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if ppid == parent and word in (entry / "cmdline").read_bytes():
                    return int(entry.name)
    raise AssertionError("no such child")


def test_a_cell_whose_server_dies_fails_with_its_reason_and_the_sweep_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "s"
    process = begin(out, *SMALL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(out.glob("cells/001*/requests.arrow")):
        time.sleep(0.02)
    time.sleep(0.7)
    os.kill(child_of(process.pid, b"harness.reference.serve"), signal.SIGKILL)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert states(out)[0] in ("failed", "partial")
    assert states(out)[1] == "done"
    assert "ended" in (SweepFolder(out).cell_folders()[0].read().error or "")
    assert no_strays()


def refused(*words: str) -> str:
    done = loadgen(*words)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "TLLM_RPC_SUBMIT_BATCHMAX=1,2"], "did you mean TLLM_RPC_SUBMIT_BATCH_MAX"),
        (["--set", "REFSTACK_LAYOUT=pool,thraed"], "did you mean 'thread'"),
        (["--concurency", "400"], "did you mean --concurrency?"),
        (["--set", "TLLM_RPC_SUBMIT_BATCH_MAX"], "expected NAME=V1,V2"),
        (["--set", "TLLM_RPC_SUBMIT_BATCH_MAX=1,,2"], "expected NAME=V1,V2"),
        (["--set", "TLLM_RPC_SUBMIT_BATCH_MAX=0"], "at least 1"),
        (["--set", "TLLM_RPC_SUBMIT_BATCH_MAX=1,1"], "each value once"),
        (["--concurrency", "0"], "at least 1"),
        (["--concurrency", "many"], "user counts"),
        (["--concurrency", "10000000", "--drive", "http"], "open files"),
        (["--duration", "-1"], "above 0"),
        (["--duration", "nan"], "finite"),
        (["--repeats", "0"], "at least 1"),
        (["--duration", "5", "--requests", "5"], "not allowed"),
        (["--resume", "/nowhere/at/all"], "does not exist"),
        (["--stack", "vlllm"], "invalid choice"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do_with_status_2(
    tmp_path: Path, words: list[str], message: str
) -> None:
    out = [] if "--resume" in words else ["--out", str(tmp_path / "s")]
    assert message in refused("sweep", *words, *out)
    assert not (tmp_path / "s").exists()


def test_a_misspelt_setting_in_the_environment_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_RPC_SUBMIT_BACH_MAX", "8")
    assert "did you mean TLLM_RPC_SUBMIT_BATCH_MAX" in refused("sweep", "--out", str(tmp_path / "s"))
    assert not (tmp_path / "s").exists()
    assert "did you mean TLLM_RPC_SUBMIT_BATCH_MAX" in refused("serve", "--port", "0")


def test_serve_refuses_a_misspelt_option_with_the_nearest() -> None:
    assert "did you mean --submit-batch-max?" in refused("serve", "--submit-bach-max", "8")


def test_a_folder_that_holds_another_sweep_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"format": 1}')
    assert "already holds a sweep" in refused("sweep", "--out", str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("x")
    assert "not empty" in refused("sweep", "--out", str(other))
    assert (other / "precious.txt").read_text() == "x"


def test_py_spy_missing_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contracts.errors import UsageError
    from harness.observers import gil_stacks

    monkeypatch.setattr(gil_stacks.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="pip install py-spy"):
        gil_stacks.find_py_spy()


def test_serve_refuses_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen" in refused("serve", "--port", str(taken.getsockname()[1]))


def test_serve_prints_its_url_and_stops_cleanly_on_ctrl_c() -> None:
    process = subprocess.Popen([*LOADGEN, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready: dict[str, Any] = {}
    for line in process.stdout:
        if line.startswith("READY "):
            ready = json.loads(line[6:])
            break
    assert ready["url"].startswith("http://127.0.0.1:")
    assert set(ready["pids"]) == {"proxy", "rank0"}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert no_strays()


def test_every_command_has_help_with_an_example() -> None:
    for command in ("sweep", "run", "serve", "gil", "report", "show", "compare"):
        text = loadgen(command, "--help").stdout
        assert f"example: loadgen {command}" in text


def test_two_sweeps_are_compared_and_a_gate_trips_only_on_a_difference(tmp_path: Path) -> None:
    one, two, longer = (str(tmp_path / name) for name in ("one", "two", "longer"))
    words = ["--no-observe", "--set", "REFSTACK_STREAM_INTERVAL=1"]
    assert loadgen("sweep", *SMALL, *words, "--out", one).returncode == 0
    assert loadgen("sweep", *SMALL, *words, "--out", two).returncode == 0
    done = loadgen("compare", one, two, "--json", "--fail-if", "ttft_ms.p50 > +5%")
    assert done.returncode == 0, "one block cannot trip a gate"
    assert {row["measure"] for row in json.loads(done.stdout)["differences"]} >= {"ttft_ms.p50", "output_tok_s"}
    assert "| users |" in loadgen("compare", one, two, "--format", "markdown").stdout
    assert loadgen("sweep", *SMALL, *words, "--isl", "80", "--out", longer).returncode == 0
    assert "isl is 40 in one and 80 in the other" in refused("compare", one, longer)
    assert "expected NAME" in refused("compare", one, two, "--fail-if", "nonsense")


def test_an_open_loop_keeps_its_schedule_and_cuts_its_share_of_requests(tmp_path: Path) -> None:
    out = tmp_path / "s"
    words = [
        *SMALL,
        "--no-observe",
        "--arrival",
        "poisson",
        "--rate",
        "40",
        "--abort-fraction",
        "0.3",
        "--abort-after",
        "2",
    ]
    done = loadgen("sweep", *words, "--out", str(out))
    assert done.returncode == 0, done.stderr
    for folder in SweepFolder(out).cell_folders():
        requests = read_table(folder.requests(), REQUESTS).to_pandas()
        assert requests["scheduled_ns"].notna().all()
        assert (requests["sent_ns"] >= requests["scheduled_ns"]).all()
        assert (requests["error_kind"] == "aborted").any()
    assert "--rate" in refused("sweep", "--arrival", "poisson")
    assert "--rate" in refused("sweep", "--rate", "5")


def test_a_running_server_is_loaded_watched_and_left_running(tmp_path: Path) -> None:
    out = tmp_path / "s"
    server = subprocess.Popen([*LOADGEN, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ready = json.loads(next(line for line in server.stdout if line.startswith("READY "))[6:])
    reader = threading.Thread(target=server.stdout.read)  # a log that nobody reads would stop the server
    reader.start()
    words = ["--url", ready["url"], "--pid", str(ready["pids"]["rank0"]), "--concurrency", "5", "--duration", "2"]
    done = loadgen("run", *words, "--isl", "40", "--osl", "6", "--warmup", "0.2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert server.poll() is None, "it is not ours to stop"
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0
    reader.join()
    server.stdout.close()
    (folder,) = SweepFolder(out).cell_folders()
    info = folder.read()
    assert info.state == "done"
    assert info.stacks is not None
    assert info.stacks.pid == ready["pids"]["rank0"]
    assert read_table(folder.requests(), REQUESTS).to_pandas()["error_kind"].isna().all()
    assert no_strays()


def test_run_refuses_a_server_that_is_not_there_and_one_that_is_not_on_this_machine() -> None:
    assert "cannot reach" in refused("run", "--url", "http://127.0.0.1:9", "--concurrency", "1")
    for url in ("http://192.0.2.1:8000", "http://localhost.example:80", "http://127.0.0.1@192.0.2.1"):
        assert "--remote" in refused("run", "--url", url)
    assert "no such process" in refused("run", "--url", "http://127.0.0.1:9", "--pid", "4194000")


def test_reading_a_folder_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    assert "folder of a sweep" in refused("show", str(tmp_path))
    assert "folder of a sweep" in refused("report", str(tmp_path))
