"""What a step's requests must own before it is launched, and what they give back after it."""

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.request import ActiveRequest, State
from harness.reference.engine.scheduler import Batch


class KvCacheManager:
    """Gives every decoding request the room for its next token."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks

    def prepare(self, batch: Batch) -> None:
        for request in batch.generation:
            self.add_token(request)
            for _ in range(request.num_draft_tokens()):
                self.add_token(request)

    def add_token(self, request: ActiveRequest) -> None:
        self._blocks.extend(request, request.prompt_len + request.launched)

    def update(self, batch: Batch) -> None:
        """Take back the room of draft tokens that were not accepted."""
        for request in batch.generation:
            if request.state is not State.COMPLETE and request.rewind_len > 0:
                self.rewind(request, request.rewind_len)

    def rewind(self, request: ActiveRequest, tokens: int) -> None:
        self._blocks.shrink(request, request.num_tokens() - tokens)


class InflightIds:
    """The ids of the requests that a launched step works on; they must not be scheduled away."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def prepare(self, batch: Batch) -> None:
        for index, request in enumerate(batch.context):
            request.batch_index = index
            self._ids.add(request.request_id)
        for index, request in enumerate(batch.generation, len(batch.context)):
            request.batch_index = index
            self._ids.add(request.request_id)

    def update(self, batch: Batch) -> None:
        for request in batch.context:
            self._ids.discard(request.request_id)
        for request in batch.generation:
            self._ids.discard(request.request_id)
