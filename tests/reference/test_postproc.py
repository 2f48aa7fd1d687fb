import os
import signal
import time
import urllib.error

import pytest
from driver import FAST, alive, get, kill_and_await_the_end_of, running_stack
from test_chunks import form_of

from harness.reference.postproc.pool import Input
from harness.reference.postproc.process import Postprocessor
from harness.reference.types import ErrorResponse, Formatted, Response

FORM = form_of(chat=False, streaming=True, include_usage=False)


def part(client_id: int, token: int, *, final: bool = False) -> Response:
    return Response(client_id, [token], 1, is_final=final, finish_reason="length" if final else None)


def test_the_form_comes_with_the_first_response_and_holds_for_the_rest() -> None:
    postprocessor = Postprocessor("stdlib")
    outputs = postprocessor.process([Input(part(1, 300), FORM), Input(part(2, 400), FORM)])
    outputs += postprocessor.process([Input(part(2, 401, final=True), None), Input(part(1, 301, final=True), None)])
    assert all(isinstance(output, Formatted) for output in outputs)
    assert [output.client_id for output in outputs] == [1, 2, 2, 1]
    assert b" w301" in outputs[3].pieces[0]  # type: ignore[union-attr]
    assert postprocessor.under_way == 0


def test_an_error_passes_through_and_ends_the_request() -> None:
    postprocessor = Postprocessor("stdlib")
    postprocessor.process([Input(part(1, 300), FORM)])
    refusal = ErrorResponse(1, "no")
    assert postprocessor.process([Input(refusal, None)]) == [refusal]
    assert postprocessor.under_way == 0


def test_a_request_that_cannot_be_written_fails_alone() -> None:
    postprocessor = Postprocessor("stdlib")
    unknown, good = postprocessor.process([Input(part(9, 300), None), Input(part(1, 300), FORM)])
    assert isinstance(unknown, ErrorResponse)
    assert (unknown.client_id, unknown.http_status) == (9, 500)
    assert isinstance(good, Formatted)


@pytest.mark.stack
def test_the_stack_says_so_when_a_post_processing_process_dies_and_leaves_nothing_behind() -> None:
    with running_stack(REFSTACK_POSTPROC_WORKERS="2", **FAST) as stack:
        pids = {process["role"]: process["pid"] for process in get(stack, "/server_info")["processes"]}
        os.kill(pids["postproc1"], signal.SIGKILL)
        deadline = time.monotonic() + 20
        code = 200
        while code == 200 and time.monotonic() < deadline:
            try:
                get(stack, "/health")
                time.sleep(0.05)
            except urllib.error.HTTPError as error:
                with error:
                    code = error.code
        assert code == 503
        assert stack.stop() == 0
        assert not any(alive(pid) for pid in pids.values())


@pytest.mark.stack
def test_post_processing_processes_end_by_themselves_when_the_server_is_killed() -> None:
    with running_stack(REFSTACK_POSTPROC_WORKERS="2", **FAST) as stack:
        pids = [process["pid"] for process in get(stack, "/server_info")["processes"]]
        kill_and_await_the_end_of(stack, pids)
