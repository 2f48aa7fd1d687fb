"""The response list of a step: which requests are in it, and with what."""

from harness.reference.engine.request import ActiveRequest
from harness.reference.engine.scheduler import Batch
from harness.reference.types import Response


def final_response(request: ActiveRequest) -> Response:
    """Build the response that ends a request; it carries the timing when that was asked for."""
    request.timing.blocks = len(request.blocks)
    return Response(
        client_id=request.client_id,
        token_ids=request.take_pending(),
        decoding_iter=request.decoding_iter,
        is_final=True,
        finish_reason=request.finish_reason,
        timing=request.timing if request.wants_timing else None,
    )


class ResponseMaker:
    """Walks the batch request by request, as the original does after each step."""

    def __init__(self, stream_interval: int) -> None:
        self._stream_interval = stream_interval
        self._tokens_per_step = 0.0

    def create(self, batch: Batch) -> list[Response]:
        responses: list[Response] = []
        steps = tokens = 0
        for requests in (batch.context, batch.generation):
            for request in requests:
                if request.is_dummy or request.slot < 0:  # a filler, or released since
                    continue
                if request.is_generation_only and not request.is_finished and request.decoding_iter <= 1:
                    continue  # its cache is still on the way
                steps += 1
                tokens += 1 + request.accepted_draft_tokens
                response = self._create_response(request)
                if response is not None:
                    responses.append(response)
        self._tokens_per_step = tokens / steps if steps else 0.0
        return responses

    def _create_response(self, request: ActiveRequest) -> Response | None:
        if not request.should_respond(self._stream_interval):
            return None
        if request.is_finished:
            return final_response(request)
        return Response(
            client_id=request.client_id, token_ids=request.take_pending(), decoding_iter=request.decoding_iter
        )
