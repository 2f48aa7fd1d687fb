"""The KV cache's bookkeeping: which blocks a request owns, and the block table that the device reads."""

import numpy as np

from harness.reference.engine.request import ActiveRequest


class BlockManager:
    """A free list of block numbers and one block-table row per slot.

    A request is admitted only when the blocks of its longest possible sequence can be promised to it, so that no
    active request ever has to wait or be evicted.
    """

    def __init__(self, total_blocks: int, tokens_per_block: int, slots: int, max_seq_len: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.total_blocks = total_blocks
        self._free = list(range(total_blocks - 1, -1, -1))
        # rows grow in steps: a row for max_seq_len up front would be mostly empty memory
        self._row_limit = self.blocks_for(max_seq_len)
        self._table = np.zeros((slots, min(64, self._row_limit)), dtype=np.int32)
        self._widest = 1
        self._promised = 0

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_block)

    def admit(self, request: ActiveRequest) -> bool:
        """Promise `request` the blocks of prompt and output and give it those of the prompt; False if too few."""
        promise = self.blocks_for(request.prompt_len + request.max_new_tokens + 1)
        if self._promised + promise > self.total_blocks:
            return False
        self._promised += promise
        count = self.blocks_for(request.prompt_len)
        cut = len(self._free) - count
        request.blocks = self._free[cut:]
        del self._free[cut:]
        self._make_room(count)
        self._table[request.slot, :count] = request.blocks
        return True

    def extend(self, request: ActiveRequest, tokens: int) -> None:
        """Make sure that an admitted `request` has blocks for `tokens`."""
        have = len(request.blocks)
        if tokens <= have * self.tokens_per_block:
            return
        block = self._free.pop()
        request.blocks.append(block)
        self._make_room(have + 1)
        self._table[request.slot, have] = block

    def shrink(self, request: ActiveRequest, tokens: int) -> None:
        """Take back the blocks that `request` does not need for `tokens`."""
        keep = self.blocks_for(tokens)
        self._free.extend(request.blocks[keep:])
        del request.blocks[keep:]

    def release(self, request: ActiveRequest) -> None:
        self._promised -= self.blocks_for(request.prompt_len + request.max_new_tokens + 1)
        self._free.extend(request.blocks)
        request.blocks = []

    def ids_of(self, request: ActiveRequest) -> list[int]:
        """Return a copy of the request's block numbers, as a call into the original's C++ manager does."""
        return list(request.blocks)

    def gather(
        self, slots: "list[int] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
    ) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
        """Return the table rows of `slots`, as wide as the widest request."""
        return self._table[slots, : self._widest]

    def _make_room(self, blocks: int) -> None:
        self._widest = max(self._widest, blocks)
        width = self._table.shape[1]
        if blocks > width:
            wider = np.zeros((self._table.shape[0], min(self._row_limit, max(blocks, 2 * width))), dtype=np.int32)
            wider[:, :width] = self._table
            self._table = wider
