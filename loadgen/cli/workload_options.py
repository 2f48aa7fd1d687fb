"""What the load asks for: lengths, shared prefixes, sessions, profiles; the options, and the spec they make."""

import argparse
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import UsageError
from contracts.load import PrefixSpec, SessionSpec, TokenizerSpec, WorkloadSpec
from loadgen.cli import parsing
from loadgen.cli.trace_options import add_trace_options, trace_spec
from loadgen.files import digest
from loadgen.workload.lengths import NOTATION, read_lengths
from loadgen.workload.tokenizer import Tokenizer
from loadgen.workload.traces.formats import TIMED

DEFAULT_ISL, DEFAULT_OSL = 4096, 64
OF_TRACE = "trace"
_PREFIX = re.compile(r"^([1-9]\d{0,5}):([1-9]\d{0,6})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Profile:
    """A named workload: what its options are where the command line does not say otherwise."""

    isl: str
    osl: str
    turns: str
    turn_isl: str
    prefix: PrefixSpec
    think_s: float


# A chosen shape whose means agree with the dataset card of "GitHub Copilot Coding Agent Traces 2026" (Azure public
# dataset, 7 days, 9.3 M calls): 30.9 calls a session, 527 output and 67,800 prompt tokens a call. See docs/load.md.
PROFILES = {
    "agentic-coding": Profile(
        isl="lognormal:mean=8000,cv=0.5",
        osl="lognormal:mean=527,cv=1",
        turns="31",
        turn_isl="lognormal:mean=2660,cv=1",
        prefix=PrefixSpec(groups=4, tokens=12_000),
        think_s=1.0,
    )
}


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload", f"LENGTHS is {NOTATION.replace('%', '%%')}")
    group.add_argument("--isl", metavar="LENGTHS", help=f"prompt tokens ({DEFAULT_ISL})")
    group.add_argument("--osl", metavar="LENGTHS", help=f"output tokens ({DEFAULT_OSL})")
    group.add_argument(
        "--spread", type=parsing.fraction, metavar="F", default=0.1, help="a plain N is uniform within +-F (0.1)"
    )
    group.add_argument(
        "--shared-prefix", type=shared_prefix, metavar="GROUPS:TOKENS",
        help="prompts begin with one of so many prefixes of so many tokens each",
    )  # fmt: skip
    group.add_argument("--turns", metavar="LENGTHS", help="requests a session, whose history grows (one)")
    group.add_argument("--turn-isl", metavar="LENGTHS", help="new prompt tokens of each later turn (as --isl)")
    group.add_argument(
        "--max-context", type=parsing.count, metavar="N", help="end a session before prompt and answer exceed N tokens"
    )
    group.add_argument(
        "--profile", choices=sorted(PROFILES), help="defaults of the options above, as docs/load.md says"
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="a tokenizer.json, for texts of exactly so many tokens",
    )
    add_trace_options(parser)


def shared_prefix(text: str) -> PrefixSpec:
    match = _PREFIX.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected GROUPS:TOKENS, as in 8:2048")
    return PrefixSpec(int(match[1]), int(match[2]))


def think_s(options: argparse.Namespace) -> float:
    """Say how long users think: as told, else as the profile has it, else not."""
    profile = PROFILES.get(options.profile)
    if options.think is not None:
        return float(options.think)
    return profile.think_s if profile else 0.0


def workload_spec(options: argparse.Namespace, drive: str) -> WorkloadSpec:
    """Make the workload's spec. Raises UsageError for what cannot be drawn from, or replayed."""
    trace = trace_spec(options, drive)
    tokenizer = _tokenizer(options.tokenizer)
    if trace is not None:
        osl = _whole(OF_TRACE if trace.format in TIMED else options.osl or DEFAULT_OSL)
        if osl != OF_TRACE and read_lengths(osl, what="--osl").partners is not None:
            raise UsageError("--osl: a trace has its own prompts, so a file of pairs is of no use")
        return WorkloadSpec(
            OF_TRACE,
            osl,
            options.spread,
            options.spread,
            options.seed,
            lengths_digest=_digest([osl]),
            trace=trace,
            tokenizer=tokenizer,
        )
    profile = PROFILES.get(options.profile)
    isl = _whole(options.isl or (profile.isl if profile else DEFAULT_ISL))
    osl = _whole(options.osl or (profile.osl if profile else DEFAULT_OSL))
    turns = options.turns or (profile.turns if profile else None)
    turn_isl = _whole(options.turn_isl or (profile.turn_isl if profile else isl))
    if turns is None and (options.turn_isl or options.max_context):
        raise UsageError("--turn-isl and --max-context are of sessions: give --turns N, too")
    session = None if turns is None else SessionSpec(_whole(turns), turn_isl, options.max_context)
    named = {"--isl": isl, "--osl": osl}
    if session is not None:
        named |= {"--turns": session.turns, "--turn-isl": session.turn_isl}
    pairs = {name for name, text in named.items() if read_lengths(text, what=name).partners is not None}
    if pairs - {"--isl", "--osl"} or (pairs and (options.osl or options.isl) != options.isl):
        raise UsageError("a file of pairs gives the lengths of prompts and outputs: name it with --isl, without --osl")
    return WorkloadSpec(
        isl=isl,
        osl=isl if pairs else osl,
        isl_spread=options.spread,
        osl_spread=options.spread,
        seed=options.seed,
        lengths_digest=_digest(list(named.values())),
        prefix=options.shared_prefix or (profile.prefix if profile else None),
        session=session,
        tokenizer=tokenizer,
    )


def _tokenizer(path: Path | None) -> TokenizerSpec | None:
    """Name a tokenizer that was tried: prompts can be made with it."""
    if path is None:
        return None
    tokenizer = Tokenizer(path.absolute())
    tokenizer.vocabulary()
    return TokenizerSpec(str(tokenizer.path), digest(tokenizer.path))


def _whole(text: int | str) -> int | str:
    """Make a plain number one, and a file's name absolute: the load processes may run elsewhere."""
    if isinstance(text, str) and text.isascii() and text.isdecimal():
        return int(text)
    if isinstance(text, str) and text.startswith("@"):
        return f"@{Path(text[1:]).absolute()}"
    return text


def _digest(lengths: list[int | str]) -> str | None:
    files = [text[1:] for text in lengths if isinstance(text, str) and text.startswith("@")]
    if not files:
        return None
    return hashlib.sha256(" ".join(digest(Path(name)) for name in files).encode()).hexdigest()
