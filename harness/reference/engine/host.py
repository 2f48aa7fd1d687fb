"""The host work of a step, request by request, in the kinds and the order of the original's Python executor loop."""

from collections.abc import Sequence
from typing import Protocol

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import StepInputs
from harness.reference.engine.inputs import InputPreparer
from harness.reference.engine.request import ActiveRequest, State
from harness.reference.engine.resources import InflightIds, KvCacheManager
from harness.reference.engine.responses import ResponseMaker, final_response
from harness.reference.engine.sampler import SamplePlan, Sampler
from harness.reference.engine.scheduler import Batch, CapacityScheduler, MicroBatchScheduler
from harness.reference.types import Response


class HostWork(Protocol):
    """The work that the executor loop does on the CPU for the batch of a step.

    The loop calls `admit` once per request (one that was taken over decodes already); then `schedule`, `prepare`,
    `update` (which returns the requests that finished) and `respond` once per step; `cancel` for a request that ends
    from outside (its answer is the last response); and `forget` before it releases a request.
    """

    def admit(self, request: ActiveRequest) -> None: ...

    def cancel(self, request: ActiveRequest) -> Response: ...

    def forget(self, request: ActiveRequest) -> None: ...

    def schedule(self, active: Sequence[ActiveRequest]) -> Batch: ...

    def prepare(self, batch: Batch) -> StepInputs: ...

    def update(self, batch: Batch, tokens: list[int], iteration: int) -> list[ActiveRequest]: ...

    def respond(self, batch: Batch) -> list[Response]: ...


class FaithfulHost:
    """Python objects and Python loops, one request at a time."""

    def __init__(
        self, blocks: BlockManager, *, max_requests: int, max_num_tokens: int, max_seq_len: int, stream_interval: int
    ) -> None:
        self._capacity = CapacityScheduler(blocks, max_requests)
        self._micro_batch = MicroBatchScheduler(max_num_tokens)
        self._resources = (KvCacheManager(blocks), InflightIds())
        self._inputs = InputPreparer(blocks)
        self._sampler = Sampler(max_seq_len)
        self._responses = ResponseMaker(stream_interval)
        self.last_plan: SamplePlan | None = None

    def admit(self, request: ActiveRequest) -> None:
        """Nothing to do: the objects themselves are the state."""

    def cancel(self, request: ActiveRequest) -> Response:
        request.finish("cancelled")
        return final_response(request)

    def forget(self, request: ActiveRequest) -> None:
        """Nothing to do: the objects themselves are the state."""

    def schedule(self, active: Sequence[ActiveRequest]) -> Batch:
        return self._micro_batch.split(self._capacity.fitting(active))

    def prepare(self, batch: Batch) -> StepInputs:
        for manager in self._resources:
            manager.prepare(batch)
        inputs = self._inputs.prepare(batch)
        self.last_plan = self._sampler.plan(batch)
        self._update_request_states(batch)
        return inputs

    def _update_request_states(self, batch: Batch) -> None:
        for request in batch.context:
            request.context_position = request.prompt_len
            request.state = State.GENERATION

    def update(self, batch: Batch, tokens: list[int], iteration: int) -> list[ActiveRequest]:
        return self._sampler.update(batch, tokens, iteration)

    def respond(self, batch: Batch) -> list[Response]:
        """Create the step's response list, then give back what the step held."""
        responses = self._responses.create(batch)
        for manager in self._resources:
            manager.update(batch)
        return responses
