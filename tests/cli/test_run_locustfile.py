"""`loadgen run --locustfile` with the example of docs/load.md, and Locust's own page beside it."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.arrow import read_table
from contracts.folder import SweepFolder
from contracts.records import REQUESTS

pytestmark = pytest.mark.stack
LOADGEN = [sys.executable, "-m", "loadgen.cli.main"]
DOCS = Path(__file__).parents[2] / "docs" / "load.md"
HERE = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    words = ["-m", "loadgen.paced", str(tmp_path / "truth"), "--first-ms", "20", "--gap-ms", "5"]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as paced:
        assert paced.stdout is not None
        yield f"http://127.0.0.1:{paced.stdout.readline().strip()}"
        paced.communicate()


def begin(url: str, out: Path, *words: str) -> "subprocess.Popen[str]":
    command = [*LOADGEN, "run", "--url", url, "--model", "m", "--isl", "20", "--osl", "8", "--warmup", "0.3"]
    command += ["--no-observe", "--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_documented_users_are_recorded_like_any_other(url: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.py").write_text(example)
    words = ["--concurrency", "8", "--duration", "2", "--locustfile", str(tmp_path / "mine.py")]
    run = begin(url, tmp_path / "s", *words)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    (folder,) = SweepFolder(tmp_path / "s").cell_folders()
    rows = read_table(folder.requests(), REQUESTS).to_pylist()
    assert {row["error_kind"] for row in rows} == {None}
    assert {row["user"] for row in rows} == set(range(8))
    own = [row for row in rows if row["prompt_tokens"] == 0]
    assert {row["max_tokens"] for row in own} == {100, 20}
    assert all(row["output_tokens"] == row["max_tokens"] for row in own)
    assert len(own) < len(rows), "the other users send the workload"


def test_locusts_page_shows_the_load_and_steers_nothing(url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = begin(url, tmp_path / "s", "--concurrency", "4", "--duration", "6", "--web-ui", str(port))
    page = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    requests = 0
    while requests < 10 and time.monotonic() < deadline:
        with contextlib.suppress(OSError), HERE.open(f"{page}/stats/requests", timeout=5) as answer:
            requests = json.load(answer)["stats"][-1]["num_requests"]
        time.sleep(0.05)
    assert requests >= 10
    with pytest.raises(urllib.error.HTTPError, match="405") as refused:
        HERE.open(f"{page}/stats/reset", data=b"", timeout=5)
    refused.value.close()
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    with pytest.raises(OSError):
        HERE.open(page, timeout=5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("from locust import HttpUser\nclass Plain(HttpUser): ...\n", "Plain of"),
        ("x = 1\n", "no user in"),
        ("import nothing_of_the_kind\n", "nothing_of_the_kind"),
    ],
)
def test_a_locustfile_that_will_not_do_fails_the_cell_with_its_reason(
    url: str, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    run = begin(url, tmp_path / "s", "--concurrency", "2", "--duration", "1", "--locustfile", str(tmp_path / "mine.py"))
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 1
    assert complaint in errors


def test_a_locustfile_that_is_not_there_is_refused(url: str) -> None:
    done = subprocess.run(
        [*LOADGEN, "run", "--url", url, "--model", "m", "--locustfile", "/nowhere.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no such file" in done.stderr
