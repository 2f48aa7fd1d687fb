"""Which requests take part in a step: capacity first (can every one be finished?), then the step's token budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.request import ActiveRequest, State


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one step: new ones (their prompts are read in this step) first, then the decoding ones."""

    context: Sequence[ActiveRequest]
    generation: Sequence[ActiveRequest]

    @property
    def size(self) -> int:
        return len(self.context) + len(self.generation)

    @property
    def context_tokens(self) -> int:
        return sum(request.prompt_len for request in self.context)


class CapacityScheduler:
    """No eviction: a request runs when the blocks of its longest sequence are there besides everybody else's."""

    def __init__(self, blocks: BlockManager, max_requests: int) -> None:
        self._blocks = blocks
        self._max_requests = max_requests

    def fitting(self, active: Sequence[ActiveRequest]) -> list[ActiveRequest]:
        fitting: list[ActiveRequest] = []
        reserved = 0
        for request in active:
            if request.state >= State.COMPLETE or not self._has_step_left(request):
                continue
            if len(fitting) >= self._max_requests:
                break
            reserved += self.blocks_to_completion(request)
            if reserved > self._blocks.total_blocks:
                break
            fitting.append(request)
        return fitting

    def _has_step_left(self, request: ActiveRequest) -> bool:
        """Say whether a further step can be of use: not when the last allowed token is already under way."""
        return request.launched < request.max_new_tokens

    def blocks_to_completion(self, request: ActiveRequest) -> int:
        """Count the blocks that `request` may still ask for."""
        longest = request.prompt_len + request.max_new_tokens
        return max(0, self._blocks.blocks_for(longest) - len(request.blocks))


class MicroBatchScheduler:
    """Splits the fitting requests into new and decoding ones, within the step's budget of tokens."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens

    def split(self, fitting: Sequence[ActiveRequest]) -> Batch:
        context: list[ActiveRequest] = []
        generation: list[ActiveRequest] = []
        context_tokens = 0
        generation_tokens = 0
        for request in fitting:
            if request.is_generation:
                generation_tokens += request.sampling.beam_width + request.num_draft_tokens()
                generation.append(request)
                continue
            length = request.prompt_len - request.context_position
            if self._max_num_tokens and context and context_tokens + length > self._max_num_tokens:
                continue
            context_tokens += length
            context.append(request)
        context.sort(key=_by_adapter)
        generation.sort(key=_by_adapter)
        return Batch(context, generation)


def _by_adapter(request: ActiveRequest) -> int:
    """Keep requests of one LoRA adapter together; the sort is stable, so without adapters the order stays."""
    adapter = request.lora_task_id
    return -1 if adapter is None else adapter
