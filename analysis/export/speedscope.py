"""A cell's GIL holders for speedscope.app: py-spy's stacks, one sampled profile a thread, in ms of wall time.

The format is described at https://www.speedscope.app/file-format-schema.json
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from analysis.gil.stacks import RawStack, raw_stacks, split_frame
from analysis.window import NS_PER_MS
from contracts.errors import UsageError
from contracts.folder import CellFolder, CellInfo

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(folder: CellFolder, info: CellInfo) -> dict[str, Any]:
    """Build the document. Raises UsageError when py-spy recorded nothing in this cell.

    A stack weighs its share of the looks that told anything times the wall time of the recording, so that the profiles
    add up to the time in which somebody held the GIL.
    """
    stacks = info.stacks
    looks = stacks.attempts - stacks.errors if stacks else 0
    if stacks is None or looks <= 0 or not folder.stacks.exists():
        raise UsageError(f"cell {info.id} ({info.state}) has no stacks of GIL holders: py-spy recorded nothing there")
    look_ms = (stacks.end_ns - stacks.start_ns) / NS_PER_MS / looks
    threads: defaultdict[str, list[RawStack]] = defaultdict(list)
    with open(folder.stacks, encoding="utf-8", errors="replace") as lines:
        for stack in raw_stacks(lines):
            threads[f"{stack.thread} ({stack.thread_id})"].append(stack)
    frames: dict[str, int] = {}
    profiles = [_profile(name, found, frames, look_ms) for name, found in threads.items()]
    profiles.sort(key=lambda profile: -profile["endValue"])
    return {
        "$schema": SCHEMA,
        "name": f"GIL holders of {info.slug}",
        "exporter": "loadgen",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": profiles,
    }


def _profile(name: str, stacks: list[RawStack], frames: dict[str, int], look_ms: float) -> dict[str, Any]:
    weights = [stack.count * look_ms for stack in stacks]
    return {
        "type": "sampled",
        "name": name,
        "unit": "milliseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [[frames.setdefault(frame, len(frames)) for frame in stack.frames] for stack in stacks],
        "weights": weights,
    }


def _frame(frame: str) -> Mapping[str, Any]:
    name, file, line = split_frame(frame)
    known: dict[str, Any] = {"name": name}
    if file is not None:
        known["file"] = file
    if line is not None:
        known["line"] = line
    return known
