"""Sweeps with a name: the words that `loadgen sweep --preset NAME` stands for. What is said beside it wins."""

from collections.abc import Sequence
from typing import Final

PRESETS: Final = {
    "claims": (
        "--concurrency", "400,2048",
        "--isl", "1024",
        "--duration", "10",
        "--one-at-a-time",
        "--set", "REFSTACK_PRESET=original-2026-05",
        "--set", "TLLM_RPC_SUBMIT_BATCH_MAX=1,8,16,32,64",
        "--set", "REFSTACK_TOKEN_IDS=list,int32",
        "--set", "REFSTACK_ENQUEUE_COPY=deepcopy,list",
        "--set", "REFSTACK_RPC_RECEIVE=poll,event",
        "--set", "REFSTACK_STREAM_INTERVAL=1,20",
        "--set", "REFSTACK_GC=default,threshold",
    ),
}  # fmt: skip


def with_preset(name: str, words: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Put a preset's words before the user's; `settings` are the user's NAME=VALUES, which replace the preset's."""
    own = {setting.partition("=")[0] for setting in settings}
    kept: list[str] = []
    preset = iter(PRESETS[name])
    for word in preset:
        if word == "--set":
            setting = next(preset)
            if setting.partition("=")[0] not in own:
                kept += ["--set", setting]
        else:
            kept.append(word)
    return [*kept, *words]
