"""`python -m harness.observers.gil PID --out FILE`: the sampler as a process of its own, writing a record a look.

Ends after `--duration`, at SIGINT or SIGTERM, or with the target. The last line on stdout is a JSON object of how it
went: looks, missed, threads, and why it ended. With `--pulse` there is a line a second before it (`pulse`).
"""

import argparse
import gc
import json
import signal
import sys
from pathlib import Path

from contracts.arrow import RecordWriter
from contracts.errors import ToolError
from contracts.records import GIL
from harness.observers.gil.pulse import PulseCounter
from harness.observers.gil.sampler import RATE_HZ, GilSampler


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.observers.gil", description=__doc__)
    parser.add_argument("pid", type=int)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the record file to write")
    parser.add_argument("--duration", type=float, metavar="S", help="how long (default: until told to stop)")
    parser.add_argument("--rate", type=float, default=RATE_HZ, metavar="HZ", help="looks a second (%(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="of the random gaps")
    parser.add_argument("--pulse", action="store_true", help="print what was seen once a second")
    options = parser.parse_args()
    pulse = PulseCounter() if options.pulse else None
    stopping = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        with (
            RecordWriter(options.out, GIL) as writer,  # first: what it loads must not load at real-time priority
            GilSampler(options.pid, rate_hz=options.rate, seed=options.seed) as sampler,
        ):
            gc.freeze()
            looks = 0
            for row in sampler.rows(options.duration, stop=lambda: stopping):
                writer.append(row)
                looks += 1
                if pulse is not None and (line := pulse.add(row)) is not None:
                    print(line, flush=True)
            print(
                json.dumps(
                    {
                        "looks": looks,
                        "missed": sampler.missed,
                        "threads": sampler.threads,
                        "python": ".".join(map(str, sampler.layout.version)),
                        "ended": sampler.ended,
                    }
                ),
                flush=True,
            )
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
