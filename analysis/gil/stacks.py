"""Who held the GIL: py-spy's `record --gil --nonblocking --threads --format raw`, read into shares of wall time.

One line a distinct stack: `thread (ID): NAME;outermost frame;...;innermost frame COUNT`. A frame is
`function (file:line)`. The thread part lacks `: NAME` when py-spy could not learn the name. Every count is one look at
the process that found this thread holding the GIL with this stack, so a share of wall time is the count over the looks
that told anything: attempts - errors.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.folder import GilStacks

_THREAD = re.compile(r"^thread \((?P<id>[^)]*)\)(?:: (?P<name>.*))?$", re.IGNORECASE)
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
_POOL = re.compile(r"^(?P<stem>.*?)[_-]\d+(?:[_-]\d+)*$")
_OWN_PACKAGES = ("harness", "tensorrt_llm", "vllm", "sglang")
_LIBRARIES = frozenset({
    "zmq", "uvicorn", "fastapi", "starlette", "pydantic", "anyio", "h11", "httptools", "uvloop", "numpy", "torch",
    "msgspec", "orjson", "cloudpickle",
})  # fmt: skip
UNNAMED = "(unnamed thread)"


@dataclass(frozen=True, slots=True)
class Function:
    """Where the GIL was held: the innermost frame, and the nearest frame of the serving code above it."""

    leaf: str
    own: str


@dataclass(frozen=True, slots=True)
class Holders:
    """Shares of wall time in which a thread held the GIL, over `looks` successful looks at the process.

    `by_thread` has the members of a pool under one name (`asyncio_*`), `by_raw_thread` each by its own. The
    functions of a thread group are keyed by (group, function). `by_stack` has whole stacks: the group, then frames
    without their lines, outermost first. `missed` is the share of looks whose stack was lost.
    """

    looks: int
    missed: float
    complete: bool
    by_thread: Mapping[str, float]
    by_raw_thread: Mapping[str, float]
    by_function: Mapping[tuple[str, Function], float]
    by_stack: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Share of wall time in which anybody held the GIL."""
        return sum(self.by_thread.values())


def load_holders(path: Path, stacks: GilStacks | None) -> Holders | None:
    """Read a cell's stacks; None when the sampler did not run or saw nothing that can be turned into shares."""
    if stacks is None or not path.exists():
        return None
    looks = stacks.attempts - stacks.errors
    if looks <= 0:
        return None
    with open(path, encoding="utf-8", errors="replace") as lines:
        return count_holders(lines, stacks)


@dataclass(frozen=True, slots=True)
class RawStack:
    """One line of py-spy's raw output: frames outermost first, and how often the thread was found with them."""

    thread: str
    thread_id: str
    frames: list[str]
    count: int


def raw_stacks(lines: Iterable[str]) -> Iterator[RawStack]:
    """Read raw lines; those that do not end in a count (a cut-off file's last) are left out."""
    for line in lines:
        stack, _, count = line.rstrip("\n").rpartition(" ")
        if not stack or not count.isdigit():
            continue
        thread, *frames = stack.split(";")
        match = _THREAD.match(thread)
        name = (match["name"] if match else None) or UNNAMED
        yield RawStack(name, match["id"] if match else "", frames, int(count))


def count_holders(lines: Iterable[str], stacks: GilStacks) -> Holders:
    """Turn raw lines into shares."""
    raw: Counter[str] = Counter()
    functions: Counter[tuple[str, Function]] = Counter()
    whole: Counter[tuple[str, ...]] = Counter()
    for stack in raw_stacks(lines):
        raw[stack.thread] += stack.count
        functions[group_of(stack.thread), _function(stack.frames)] += stack.count
        whole[group_of(stack.thread), *map(_without_line, stack.frames)] += stack.count
    grouped: Counter[str] = Counter()
    for name, count in raw.items():
        grouped[group_of(name)] += count
    looks = max(stacks.attempts - stacks.errors, 1)
    return Holders(
        looks=looks,
        missed=stacks.errors / max(stacks.attempts, 1),
        complete=stacks.complete,
        by_thread={name: count / looks for name, count in grouped.most_common()},
        by_raw_thread={name: count / looks for name, count in raw.most_common()},
        by_function={key: count / looks for key, count in functions.most_common()},
        by_stack={key: count / looks for key, count in whole.items()},
    )


def group_of(thread: str) -> str:
    """Give the name under which a thread is shown: numbered pool threads share one (`asyncio_3` -> `asyncio_*`)."""
    match = _POOL.match(thread)
    return f"{match['stem']}_*" if match and match["stem"] else thread


def is_executor_loop(thread: str) -> bool:
    """Say whether a thread is the engine's decode loop, by the names that the known servers give it."""
    return "executor_loop" in thread or "event_loop_wrapper" in thread or "engine_loop" in thread


def _function(frames: list[str]) -> Function:
    if not frames:
        return Function("(no frame)", "(no frame)")
    leaf = _without_line(frames[-1])
    own = next((_without_line(frame) for frame in reversed(frames) if _is_own(frame)), leaf)
    return Function(leaf, own)


def split_frame(frame: str) -> tuple[str, str | None, int | None]:
    """Take `function (file:line)` apart; file and line are None where the frame does not say them."""
    match = _FRAME.match(frame)
    if match is None:
        return frame, None, None
    return match["function"], match["file"], int(match["line"]) if match["line"] else None


def _without_line(frame: str) -> str:
    match = _FRAME.match(frame)
    return f"{match['function']} ({match['file']})" if match else frame


def _is_own(frame: str) -> bool:
    """Tell the serving code's frames from those of the standard library and of common libraries."""
    match = _FRAME.match(frame)
    if match is None:
        return False
    file = match["file"]
    parts = file.split("/")
    if any(package in parts for package in _OWN_PACKAGES):
        return True
    if "site-packages" in parts or file.startswith("<") or re.search(r"(^|/)lib/python3\.\d+/", file):
        return False
    top = next((part for part in parts if part), "").removesuffix(".py")
    return top not in sys.stdlib_module_names and top not in _LIBRARIES
