"""What a `kill -9` of the load process costs, at random moments: whether what was flushed loads, and how much is lost.

    .venv/bin/python benchmarks/kill_load.py [--kills 20] [--users 256] [--seed 1] [--json]

The paced server of the selftest knows every request that it finished. A kill loses those that the client had not yet
flushed: the oldest of them says how much time. Exit status 1 when a file does not load, a row is not whole, or more
than a second (and the time that a flush takes, --slack) is lost; kills of a process that had waited half a second and
more for a core count only for the former.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic_ns

from common import end_with

from contracts.arrow import read_table
from contracts.records import CLIENT, REQUESTS
from loadgen import selftest
from loadgen.paced import read_truth
from loadgen.selftest import OSL
from loadgen.started import LoadProcess

MOST_QUEUED_S = 0.5


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: seconds after the ramp, rows that load, and how old the oldest thing was that is lost, s.

    `queued_s` is how long the process had waited for a core: what it could not read it could not flush."""

    after_s: float
    rows: int
    client_rows: int
    lost: int
    lost_s: float
    whole: bool
    queued_s: float

    @property
    def judged(self) -> bool:
        return self.queued_s < MOST_QUEUED_S


def kill_once(users: int, after_s: float, folder: Path) -> Kill:
    with selftest.paced_server(folder / "truth") as port:
        spec = selftest.load_spec(f"http://127.0.0.1:{port}", users, folder)
        spec = replace(spec, think_s=0.5, think="exponential")  # so that requests end all the time
        with selftest.on_cpus(server=False):
            process = LoadProcess(spec)
        with process:
            process.tell("start")
            process.until("ramped")
            time.sleep(after_s)
            queued_s = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
            process.kill()
            killed_ns = monotonic_ns()
    rows = read_table(folder / "requests.arrow", REQUESTS).to_pylist()
    client = read_table(folder / "client.arrow", CLIENT).num_rows
    kept = {row["server_id"] for row in rows}
    ended = {
        name: int(one.sends_ns[-1])
        for name, one in read_truth(folder / "truth").items()
        if len(one.sends_ns) == OSL and one.sends_ns[-1] < killed_ns
    }
    lost = [end_ns for name, end_ns in ended.items() if name not in kept]
    lost_s = (killed_ns - min(lost)) / 1e9 if lost else 0.0
    whole = all(len(row["chunk_ns"]) == row["output_tokens"] == OSL for row in rows if row["error_kind"] is None)
    return Kill(after_s, len(rows), client, len(lost), lost_s, whole and kept <= ended.keys() | {None}, queued_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--users", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=0.25, help="seconds that a flush may take on top (%(default)g)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kills = []
    for _ in range(options.kills):
        with tempfile.TemporaryDirectory(prefix="loadgen-kill-") as text:
            kills.append(kill_once(options.users, chance.uniform(3.0, 9.0), Path(text)))
        if not options.json:
            print(kills[-1], flush=True)
    lost_s = [kill.lost_s for kill in kills]
    judged = [kill.lost_s for kill in kills if kill.judged]
    good = bool(judged) and all(kill.whole for kill in kills) and max(judged) <= 1.0 + options.slack
    if options.json:
        print(
            json.dumps({"kills": [asdict(kill) for kill in kills], "most_lost_s": max(lost_s), "good": good}, indent=1)
        )
    else:
        print(
            f"{len(kills)} kills, {sum(kill.rows for kill in kills)} rows loaded; lost: median "
            f"{statistics.median(lost_s):.2f} s, most {max(lost_s):.2f} s; {len(judged)} had the CPU they needed: "
            f"{'good' if good else 'NOT GOOD'}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    end_with(main)
