"""Replaying a trace: its options, and what goes with them."""

import argparse
import re
from pathlib import Path

from contracts.errors import UsageError
from contracts.load import TraceSpec
from loadgen.cli import parsing
from loadgen.files import digest
from loadgen.workload.arrival import TRACE
from loadgen.workload.traces.formats import FORMATS, SHAREGPT, TIMED
from loadgen.workload.traces.reader import check_trace

_NOT_OF_TRACES = ("isl", "turn_isl", "max_context", "shared_prefix", "profile")


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trace", "requests as they were recorded, instead of drawn ones (docs/load.md)")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="replay this trace, to its end if nothing else is said"
    )
    group.add_argument("--trace-format", choices=FORMATS, help="what FILE is (default: what it looks like)")
    group.add_argument(
        "--time-scale", type=parsing.positive, metavar="F", help="with --arrival trace: run F times as fast (1)"
    )


def trace_spec(options: argparse.Namespace, drive: str) -> TraceSpec | None:
    """Make the trace's spec, having read its first requests. Raises UsageError."""
    if options.trace is None:
        for name in ("trace_format", "time_scale"):
            if getattr(options, name) is not None:
                raise UsageError(f"{_option(name)} is of a trace: give --trace FILE, too")
        if options.arrival == TRACE:
            raise UsageError("--arrival trace takes the times of a trace: give --trace FILE, too")
        return None
    given = [name for name in _NOT_OF_TRACES if getattr(options, name) is not None]
    if given:
        raise UsageError(f"{_option(given[0])} is of drawn requests: a trace has its own")
    path: Path = options.trace.absolute()
    name, first = check_trace(path, options.trace_format)
    if options.arrival == TRACE and first.at_ns is None:
        raise UsageError(f"{path} has no times: --arrival trace cannot follow them; use closed, or a --rate")
    if options.time_scale is not None and options.arrival != TRACE:
        raise UsageError("--time-scale changes a trace's own times: give --arrival trace, too")
    if options.osl is not None and name in TIMED:
        raise UsageError(f"--osl: a trace of the format {name} says itself how many tokens each request brings")
    if first.texts and drive == "rpc":
        raise UsageError(f"{path} holds prompts of text, and --drive rpc takes token ids: use --drive http")
    if first.ids and drive == "http" and options.endpoint != "completions":
        raise UsageError(f"{path} holds token ids, which --endpoint {options.endpoint} does not take: use completions")
    return TraceSpec(str(path), name, digest(path), options.time_scale or 1.0, _turns(options.turns, name))


def _turns(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if name != SHAREGPT or not re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII):
        raise UsageError(
            f"--turns {text}: with a trace it is a whole number, the most turns of a ShareGPT conversation"
        )
    return int(text)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
