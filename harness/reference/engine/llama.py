"""A small Llama-shaped decoder with random weights: the model of device `torch`.

Float64 throughout: how a library orders a sum depends on the batch, and in float64 what that changes is some 1e13 times
smaller than the distance between two logits, so that a request's tokens do not depend on who shares its steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.reference.types import EOS_ID, FIRST_TEXT_ID, VOCAB_SIZE

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-6
SEED = 20_260_501


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the decoder; `heads` query heads share `kv_heads` key and value heads."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    intermediate: int = 128


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Llama:
    """The weights, the same on every device and in every process, and the forward pass but for its attention."""

    def __init__(self, device: Any, shape: Shape | None = None) -> None:
        self.shape = shape = shape or Shape()
        generator = torch.Generator().manual_seed(SEED)

        def weight(inputs: int, outputs: int) -> Tensor:
            drawn = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64)
            scaled: Tensor = (drawn / inputs**0.5).to(device)
            return scaled

        def norm() -> Tensor:
            return (1 + 0.1 * torch.randn(shape.hidden, generator=generator, dtype=torch.float64)).to(device)

        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self._embedding = weight(VOCAB_SIZE, shape.hidden) * VOCAB_SIZE**0.5
        self._layers = [
            _Layer(
                attention_norm=norm(),
                query=weight(shape.hidden, queries),
                key=weight(shape.hidden, keys),
                value=weight(shape.hidden, keys),
                output=weight(queries, shape.hidden),
                mlp_norm=norm(),
                gate=weight(shape.hidden, shape.intermediate),
                up=weight(shape.hidden, shape.intermediate),
                down=weight(shape.intermediate, shape.hidden),
            )
            for _ in range(shape.layers)
        ]
        self._final_norm = norm()
        self._head = weight(shape.hidden, VOCAB_SIZE)
        steps = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
        self._frequencies = (ROPE_BASE**-steps).to(device)
        self._forbidden = torch.zeros(VOCAB_SIZE, dtype=torch.float64)
        self._forbidden[:FIRST_TEXT_ID] = -torch.inf  # these ids are bytes of prompts
        self._forbidden[EOS_ID] = 0.0
        self._forbidden = self._forbidden.to(device)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the hidden state of each token.

        `attend` gets (layer, queries, keys, values), the last three [tokens, heads, size], and returns one such.
        """
        shape = self.shape
        count = len(ids)
        hidden: Tensor = self._embedding[ids]
        angles = positions[:, None].to(torch.float64) * self._frequencies
        cosine, sine = angles.cos()[:, None, :], angles.sin()[:, None, :]
        for number, layer in enumerate(self._layers):
            normed = _rms_norm(hidden, layer.attention_norm)
            queries = _rotated((normed @ layer.query).view(count, shape.heads, shape.head_size), cosine, sine)
            keys = _rotated((normed @ layer.key).view(count, shape.kv_heads, shape.head_size), cosine, sine)
            values = (normed @ layer.value).view(count, shape.kv_heads, shape.head_size)
            hidden = hidden + attend(number, queries, keys, values).reshape(count, -1) @ layer.output
            normed = _rms_norm(hidden, layer.mlp_norm)
            hidden = hidden + (functional.silu(normed @ layer.gate) * (normed @ layer.up)) @ layer.down
        return hidden

    def greedy(self, hidden: Tensor) -> Tensor:
        """Return the likeliest next token of each hidden state: a word, or the end of the sequence."""
        logits = _rms_norm(hidden, self._final_norm) @ self._head
        return (logits + self._forbidden).argmax(dim=-1)

    def grouped(self, shared: Tensor) -> Tensor:
        """Repeat keys or values [..., kv_heads, size] for the query heads that share each."""
        return shared.repeat_interleave(self.shape.heads // self.shape.kv_heads, dim=-2)


def _rms_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * torch.rsqrt(hidden.pow(2).mean(dim=-1, keepdim=True) + NORM_EPSILON) * weight


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply the rotary position embedding (Su et al. 2021) to [tokens, heads, size]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class KnownAnswer:
    """What the model must answer: one request by itself, its keys and values in plain tensors, no blocks, no batch."""

    def __init__(self) -> None:
        self._model = Llama("cpu")

    def expected_tokens(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = True) -> list[int]:
        past: list[tuple[Tensor, Tensor]] = []

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if layer == len(past):
                past.append((keys, values))
            else:
                past[layer] = (torch.cat([past[layer][0], keys]), torch.cat([past[layer][1], values]))
            all_keys, all_values = (self._model.grouped(tensor) for tensor in past[layer])
            scores = torch.einsum("qhd,khd->hqk", queries, all_keys) / self._model.shape.head_size**0.5
            causal = torch.ones(scores.shape[1:], dtype=torch.bool).tril(scores.shape[2] - scores.shape[1])
            weights = scores.masked_fill(~causal, -torch.inf).softmax(dim=-1)
            return torch.einsum("hqk,khd->qhd", weights, all_values)

        tokens: list[int] = []
        ids = torch.tensor(prompt)
        positions = torch.arange(len(prompt))
        with torch.inference_mode():
            while len(tokens) < max_tokens:
                hidden = self._model.forward(ids, positions, attend)
                tokens.append(int(self._model.greedy(hidden[-1:])))
                if tokens[-1] == EOS_ID and not ignore_eos:
                    break
                ids, positions = torch.tensor(tokens[-1:]), positions[-1:] + 1
        return tokens
