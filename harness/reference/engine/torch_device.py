"""Device `torch`: a real forward pass per step, launched from the executor loop; on CUDA if there is one, else the CPU.

On CUDA a step is launched asynchronously: inputs come from pinned memory, nothing in a launch waits for the GPU, and
the sampler's wait blocks on an event without the GIL. On the CPU the forward pass runs in the launch, on one thread,
and each of its operators gives the GIL up and takes it back.
"""

import time
from array import array
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from harness.reference.engine.device import StepInputs
from harness.reference.engine.llama import Llama

FIRST_BLOCKS = 256


class TorchStep:
    """A launched step; the events are CUDA's, and None where the launch ran it to its end."""

    __slots__ = ("began", "device_ms", "ended", "tokens", "waited_s")

    def __init__(self, tokens: Tensor, began: Any, ended: Any, launch_ms: float) -> None:
        self.tokens = tokens
        self.began = began
        self.ended = ended
        self.device_ms = launch_ms
        self.waited_s = 0.0


class BlockCache:
    """Keys and values in blocks: a pair of tensors [layers, blocks, tokens, kv_heads, size], which grow as needed."""

    def __init__(self, model: Llama, tokens_per_block: int, device: Any) -> None:
        shape = model.shape
        self._tokens_per_block = tokens_per_block
        self._size = (shape.kv_heads, shape.head_size)
        self._layers = shape.layers
        self._device = device
        self._keys = self._empty(0)
        self._values = self._empty(0)

    def _empty(self, blocks: int) -> Tensor:
        size = (self._layers, blocks, self._tokens_per_block, *self._size)
        return torch.zeros(size, dtype=torch.float64, device=self._device)

    def make_room(self, blocks: int) -> None:
        """Grow to at least `blocks`; on CUDA in stream order, as all else."""
        have = self._keys.shape[1]
        if blocks <= have:
            return
        more = max(blocks, 2 * have, FIRST_BLOCKS) - have
        self._keys = torch.cat([self._keys, self._empty(more)], dim=1)
        self._values = torch.cat([self._values, self._empty(more)], dim=1)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put one token's keys and values at each place: block x tokens per block + offset."""
        self._keys[layer].view(-1, *self._size).index_copy_(0, places, keys)
        self._values[layer].view(-1, *self._size).index_copy_(0, places, values)

    def read(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the rows of a block table as [rows, tokens, kv_heads, size]."""
        return self._keys[layer][table].flatten(1, 2), self._values[layer][table].flatten(1, 2)


class TorchDevice:
    """Runs the steps of one rank. The last token of each slot stays on the device, so a launch never waits for one."""

    def __init__(self, slots: int, tokens_per_block: int) -> None:
        self._cuda = torch.cuda.is_available()
        self._device = torch.device("cuda" if self._cuda else "cpu")
        if not self._cuda:
            torch.set_num_threads(1)
        self._model = Llama(self._device)
        self._tokens_per_block = tokens_per_block
        self._cache = BlockCache(self._model, tokens_per_block, self._device)
        self._last = torch.zeros(slots, dtype=torch.int64, device=self._device)

    def launch(self, inputs: StepInputs) -> TorchStep:
        """Queue a step's forward pass, sampling included (on the CPU: run it)."""
        launched_s = time.monotonic()
        began = ended = None
        if self._cuda:
            event: Any = torch.cuda.Event
            began, ended = event(enable_timing=True), event(enable_timing=True, blocking=True)
            began.record()
        with torch.inference_mode():
            sampled = self._sample(inputs)
            if ended is not None:
                on_host = torch.empty(sampled.shape, dtype=sampled.dtype, pin_memory=True)
                sampled = on_host.copy_(sampled, non_blocking=True)
                ended.record()
        return TorchStep(sampled, began, ended, (time.monotonic() - launched_s) * 1e3)

    def _sample(self, inputs: StepInputs) -> Tensor:
        context = sum(inputs.context_lens)
        slots = self._put(inputs.slots)
        prompts = self._put(inputs.input_ids[:context].astype(np.int64))
        ids = torch.cat([prompts, self._last[slots[len(inputs.context_lens) :]]])
        self._cache.make_room(int(inputs.block_table.max(initial=0)) + 1)
        attention = _Attention(self._model, self._cache, inputs, self._tokens_per_block, self._put)
        hidden = self._model.forward(ids, self._put(inputs.positions.astype(np.int64)), attention)
        sampled = self._model.greedy(hidden[self._put(inputs.gather_ids.astype(np.int64))])
        self._last.index_copy_(0, slots, sampled)
        return sampled

    def _put(self, array: "np.ndarray[Any, np.dtype[Any]]") -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._cuda else tensor

    def receive(self, slot: int, prompt: "array[int]") -> None:
        """Refuse: there is no context server that could send a cache; the executor lets no such request in."""
        raise NotImplementedError("the torch device has nobody to receive a cache from")

    def wait(self, step: TorchStep) -> list[int]:
        """Block without the GIL until the step is over; `waited_s` then includes the way back to the GIL."""
        if step.ended is not None:
            before = time.monotonic()
            step.ended.synchronize()
            step.waited_s = time.monotonic() - before
            step.device_ms = step.began.elapsed_time(step.ended)
        tokens: list[int] = step.tokens.tolist()
        return tokens

    def close(self) -> None:
        """Wait until the device is idle."""
        if self._cuda:
            torch.cuda.synchronize()


class _Attention:
    """One step's attention: each new prompt within itself, then all decoding requests over their blocks, padded."""

    def __init__(self, model: Llama, cache: BlockCache, inputs: StepInputs, tokens_per_block: int, put: Any) -> None:
        self._model = model
        self._cache = cache
        self._context_lens = inputs.context_lens
        new, lengths = len(inputs.context_lens), inputs.sequence_lengths
        rows = np.repeat(np.arange(len(lengths)), lengths)
        blocks = inputs.block_table[rows, inputs.positions // tokens_per_block].astype(np.int64)
        self._places = put(blocks * tokens_per_block + inputs.positions % tokens_per_block)
        seen = inputs.positions[sum(inputs.context_lens) :]
        width = int(seen.max(initial=0)) // tokens_per_block + 1
        self._decoding = len(seen)
        self._table = put(inputs.block_table[new:, :width].astype(np.int64))
        last = put(seen.astype(np.int64))
        self._visible = torch.arange(width * tokens_per_block, device=last.device)[None, :] <= last[:, None]

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._cache.write(layer, self._places, keys, values)
        parts: list[Tensor] = []
        start = 0
        for length in self._context_lens:
            part = slice(start, start + length)
            parts.append(self._attend(queries[None, part], keys[None, part], values[None, part], causal=True)[0])
            start += length
        if self._decoding:
            past_keys, past_values = self._cache.read(layer, self._table)
            parts.append(self._attend(queries[start:, None], past_keys, past_values, mask=self._visible)[:, 0])
        return torch.cat(parts)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attend in [rows, tokens, heads, size]; `mask` says which keys each row sees."""
        grouped = (queries, self._model.grouped(keys), self._model.grouped(values))
        query, key, value = (tensor.transpose(1, 2) for tensor in grouped)
        visible = None if mask is None else mask[:, None, None, :]
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, is_causal=causal
        ).transpose(1, 2)
