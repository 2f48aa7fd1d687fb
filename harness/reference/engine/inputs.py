"""Gathering a step's inputs: token ids, positions, lengths, slots and block tables, request by request, into arrays."""

import numpy as np

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import StepInputs
from harness.reference.engine.scheduler import Batch


class InputPreparer:
    """Builds StepInputs for a batch and counts the step as launched for its requests."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks

    def prepare(self, batch: Batch) -> StepInputs:
        input_ids: list[int] = []
        position_ids: list[int] = []
        gather_ids: list[int] = []
        request_ids: list[int] = []
        sequence_lengths: list[int] = []
        prompt_lengths: list[int] = []
        cached_tokens: list[int] = []
        draft_lengths: list[int] = []
        slots: list[int] = []
        indices: list[int] = []
        block_counts: list[int] = []
        adapters: list[int] = []
        multimodal: list[object] = []
        for request in batch.context:
            begin = request.context_position
            input_ids.extend(request.prompt[begin:])
            position_ids.extend(range(begin, request.prompt_len))
            gather_ids.append(len(input_ids) - 1)
            request_ids.append(request.request_id)
            sequence_lengths.append(request.prompt_len - begin)
            prompt_lengths.append(request.prompt_len)
            cached_tokens.append(begin)
            draft_lengths.append(0)
            slots.append(request.slot)
            indices.append(request.launched)
            block_counts.append(len(request.blocks))
            if request.multimodal_data is not None:
                multimodal.append(request.multimodal_data)
            if request.lora_task_id is not None:
                adapters.append(request.lora_task_id)
            request.launched += 1
        for request in batch.generation:
            past_seen = 0 if request.is_dummy else request.prompt_len + request.launched - 1
            input_ids.append(request.last_token())
            position_ids.append(past_seen)
            gather_ids.append(len(input_ids) - 1)
            request_ids.append(request.request_id)
            sequence_lengths.append(1 + request.num_draft_tokens())
            prompt_lengths.append(request.prompt_len)
            cached_tokens.append(past_seen)
            draft_lengths.append(request.num_draft_tokens())
            slots.append(request.slot)
            indices.append(request.launched)
            block_counts.append(len(request.blocks))
            if request.multimodal_data is not None:
                multimodal.append(request.multimodal_data)
            if request.lora_task_id is not None:
                adapters.append(request.lora_task_id)
            request.launched += 1
        return StepInputs(
            input_ids=np.array(input_ids, dtype=np.int32),
            positions=np.array(position_ids, dtype=np.int32),
            gather_ids=np.array(gather_ids, dtype=np.int32),
            request_ids=np.array(request_ids, dtype=np.int64),
            sequence_lengths=np.array(sequence_lengths, dtype=np.int32),
            cached_tokens=np.array(cached_tokens, dtype=np.int32),
            block_table=self._block_table(batch),
            slots=np.array(slots, dtype=np.int64),
            indices=np.array(indices, dtype=np.int64),
            context_lens=sequence_lengths[: len(batch.context)],
        )

    def _block_table(self, batch: Batch) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
        """Turn each request's list of blocks into a row of one table, padded to the longest.

        O(blocks) every step, as in the table that the original pads for latent attention (MLA).
        """
        rows: list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]] = []
        widest = 1
        for requests in (batch.context, batch.generation):
            for request in requests:
                ids = self._blocks.ids_of(request)
                widest = max(widest, len(ids))
                rows.append(np.array(ids, dtype=np.int32))
        table = np.zeros((len(rows), widest), dtype=np.int32)
        for index, row in enumerate(rows):
            table[index, : len(row)] = row
        return table
