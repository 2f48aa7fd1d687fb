"""A generation-only request's beginning: its prompt was read elsewhere, and its first token was sampled there."""

from harness.reference.engine.request import ActiveRequest, State
from harness.reference.engine.responses import final_response
from harness.reference.types import Response, monotonic_s


def take_over(request: ActiveRequest, iteration: int) -> Response | None:
    """Put a request where its context phase left it, and return what is to be answered at once.

    That is the first token for a streamed request, and the end where that token already is it.
    """
    assert request.context_phase is not None
    token = request.context_phase.first_gen_tokens[0]
    request.add_token(token)
    request.context_position = request.prompt_len
    request.launched = request.decoding_iter = 1
    request.state = State.GENERATION
    request.timing.first_token_time = now = monotonic_s()
    request.timing.first_iter = iteration
    if request.min_new_tokens <= 1 and (token == request.end_id or token in request.stop_token_ids):
        request.finish("stop")
    elif request.max_new_tokens <= 1:
        request.finish("length")
    if request.is_finished:
        request.timing.last_token_time, request.timing.last_iter = now, iteration
        return final_response(request)
    if request.streaming:
        return Response(request.client_id, request.take_pending(), decoding_iter=1)
    return None
