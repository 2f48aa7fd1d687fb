"""The emulated device: a step-time model that releases the GIL where a GPU would, and a model with a known answer.

Nothing of its time is spent on the CPU: operator launches are real system calls (a doorbell is rung), and the wait for
a step is one sleep until the step's computed end, as a CUDA stream synchronisation is for the calling thread.
"""

import ctypes
import os
import time
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from harness.reference.types import EOS_ID, FIRST_TEXT_ID, VOCAB_SIZE

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Int32s = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Seeds = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_EOS_ONE_IN = np.uint64(1024)
PR_SET_TIMERSLACK = 29


def sleep_exactly() -> None:
    """Have this thread's sleeps end when they are due, as a wait for a GPU does, and not up to 50 us later."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def prompt_seed(prompt: bytes) -> int:
    """Return what the model makes of a prompt (its int32 token ids as bytes): the seed of its output."""
    return zlib.crc32(prompt)


def sample(seeds: Seeds, indices: Seeds) -> Ints:
    """Return the tokens at output positions `indices` of the sequences with `seeds`: the model's known answer.

    The splitmix64 finaliser (Steele, Lea, Flood 2014) over seed and position; one token in 1024 is end-of-sequence.
    """
    with np.errstate(over="ignore"):
        state = seeds * _STRIDE + (indices + np.uint64(1)) * _STRIDE
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state ^= state >> np.uint64(31)
    text = state % np.uint64(VOCAB_SIZE - FIRST_TEXT_ID) + np.uint64(FIRST_TEXT_ID)
    ends = (state >> np.uint64(40)) % _EOS_ONE_IN == 0
    return np.where(ends, EOS_ID, text.astype(np.int64))


def expected_tokens(prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = True) -> list[int]:
    """Return the tokens that the stack must answer to a prompt: what correctness tests compare with."""
    seed = prompt_seed(np.asarray(prompt, dtype=np.int32).tobytes())
    tokens: list[int] = sample(
        np.full(max_tokens, seed, dtype=np.uint64), np.arange(max_tokens, dtype=np.uint64)
    ).tolist()
    if not ignore_eos and EOS_ID in tokens:
        tokens = tokens[: tokens.index(EOS_ID) + 1]
    return tokens


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the host hands over for one step: token-wise arrays, then request-wise ones, new requests first.

    `input_ids` and `positions` have an entry per token: the prompts of the `context_lens` new requests, then one per
    decoding request. `indices` is the output position that each request samples; `slots` name the sequences.
    """

    input_ids: Int32s
    positions: Int32s
    gather_ids: Int32s
    request_ids: Ints
    sequence_lengths: Int32s
    cached_tokens: Int32s
    block_table: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    slots: Ints
    indices: Ints
    context_lens: Sequence[int]


class Step(Protocol):
    """A launched step. `waited_s` is how long `wait` was meant to block; both figures hold once it has returned."""

    device_ms: float
    waited_s: float


class Device(Protocol):
    """What runs the steps, one after the other; for the executor loop's thread alone."""

    def launch(self, inputs: StepInputs) -> Step:
        """Queue a step."""

    def receive(self, slot: int, prompt: "array[int]") -> None:
        """Take over the cache of a prompt that was read elsewhere."""

    def wait(self, step: Any) -> list[int]:
        """Block without the GIL until a step of ours is over; return the sampled token of each request."""

    def close(self) -> None: ...


class EmulatedStep:
    """A launched step: when it ends, what it sampled."""

    __slots__ = ("device_ms", "ready_s", "tokens", "waited_s")

    def __init__(self, ready_s: float, device_ms: float, tokens: Ints) -> None:
        self.ready_s = ready_s
        self.device_ms = device_ms
        self.waited_s = 0.0
        self.tokens = tokens


class EmulatedDevice:
    """Runs steps one after the other; each takes base + per request + per new prompt token from when it is free."""

    def __init__(
        self, slots: int, *, base_ms: float, per_request_us: float, per_prompt_token_us: float, calls: int
    ) -> None:
        self._base_s = base_ms / 1e3
        self._per_request_s = per_request_us / 1e6
        self._per_prompt_token_s = per_prompt_token_us / 1e6
        self._calls = calls
        self._doorbell = os.eventfd(0)
        self._free_s = 0.0
        self._seeds = np.zeros(slots, dtype=np.uint64)

    def launch(self, inputs: StepInputs) -> EmulatedStep:
        """Return at once. Each of the `calls` launches releases and retakes the GIL."""
        doorbell = self._doorbell
        for _ in range(self._calls):
            os.eventfd_write(doorbell, 1)
        start = 0
        for slot, length in zip(inputs.slots.tolist(), inputs.context_lens, strict=False):
            self._seeds[slot] = prompt_seed(inputs.input_ids[start : start + length].tobytes())
            start += length
        tokens = sample(self._seeds[inputs.slots], inputs.indices.astype(np.uint64))
        duration_s = self._base_s + len(inputs.slots) * self._per_request_s + start * self._per_prompt_token_s
        self._free_s = max(time.monotonic(), self._free_s) + duration_s
        return EmulatedStep(self._free_s, duration_s * 1e3, tokens)

    def receive(self, slot: int, prompt: "array[int]") -> None:
        self._seeds[slot] = prompt_seed(prompt.tobytes())

    def wait(self, step: EmulatedStep) -> list[int]:
        remaining = step.ready_s - time.monotonic()
        if remaining > 0:
            step.waited_s = remaining
            time.sleep(remaining)
        return step.tokens.tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        os.close(self._doorbell)
