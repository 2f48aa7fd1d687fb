"""`loadgen run` against servers that cannot be measured: it ends early, says why and keeps what it has."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from contracts.arrow import read_table
from contracts.folder import SweepFolder
from contracts.records import REQUESTS

pytestmark = pytest.mark.stack


class Broken(http.server.BaseHTTPRequestHandler):
    """Answers the harness's own first request and fails every one after it."""

    protocol_version = "HTTP/1.1"
    answered: ClassVar[list[int]] = []
    asked: ClassVar[list[tuple[str, dict[str, object]]]] = []

    def do_POST(self) -> None:
        self.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        status = 500 if self.answered else 200
        self.answered.append(status)
        body = b'{"error": {"message": "no memory left"}}' if status == 500 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def broken_url() -> Iterator[str]:
    Broken.answered.clear()
    Broken.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def loadgen(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "loadgen.cli.main", *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_server_that_fails_everything_ends_the_run_early_with_its_reason_and_records(
    broken_url: str, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    words = ["--url", broken_url, "--model", "m", "--concurrency", "4", "--duration", "100", "--warmup", "50"]
    done = loadgen("run", *words, "--give-up", "1", "--no-observe", "--isl", "20", "--out", str(out))
    assert done.returncode == 1
    (folder,) = SweepFolder(out).cell_folders()
    info = folder.read()
    assert info.state == "failed"
    assert info.error is not None
    assert "fails everything" in info.error
    assert "http_5xx" in info.error
    rows = read_table(folder.requests(), REQUESTS).to_pylist()
    assert len(rows) >= 20
    assert all("no memory left" in row["error"] for row in rows)
    assert "fails everything" in done.stderr
    assert "fails everything" in (out / "report.html").read_text()
    assert "cell_failed" in {
        doubt["code"] for doubt in json.loads(loadgen("show", str(out), "--json").stdout)["warnings"]
    }


@pytest.mark.parametrize(
    ("endpoint", "path", "field"),
    [
        ("completions", "/v1/completions", "prompt"),
        ("chat", "/v1/chat/completions", "messages"),
        ("responses", "/v1/responses", "input"),
    ],
)
def test_the_first_request_is_made_where_the_load_goes(
    broken_url: str, tmp_path: Path, endpoint: str, path: str, field: str
) -> None:
    words = ["--url", broken_url, "--model", "m", "--concurrency", "20", "--duration", "1", "--warmup", "0"]
    loadgen("run", *words, "--endpoint", endpoint, "--give-up", "0.1", "--no-observe", "--out", str(tmp_path / "s"))
    assert Broken.asked[0][0] == Broken.asked[1][0] == path
    assert field in Broken.asked[0][1]
    assert field in Broken.asked[1][1]


@pytest.mark.parametrize("url", ["http://nowhere.invalid:80", "http://127.0.0.1:9"])
def test_a_host_that_is_not_there_is_refused_before_anything_begins(tmp_path: Path, url: str) -> None:
    done = loadgen("run", "--url", url, "--remote", "--out", str(tmp_path / "s"))
    assert done.returncode == 2
    assert "cannot reach" in done.stderr
    assert not (tmp_path / "s").exists()
