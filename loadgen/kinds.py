"""The closed list of ways in which a request can fail; these are the values of `RequestRow.error_kind`."""

from typing import Final

CONNECT_REFUSED: Final = "connect_refused"
CONNECT_TIMEOUT: Final = "connect_timeout"
CONNECT_FAILED: Final = "connect_failed"
READ_TIMEOUT: Final = "read_timeout"
CLOSED_EARLY: Final = "closed_early"
HTTP_4XX: Final = "http_4xx"
HTTP_5XX: Final = "http_5xx"
HTTP_OTHER: Final = "http_other"
BAD_STREAM: Final = "bad_stream"
ERROR_BODY: Final = "error_body"
ERROR_IN_STREAM: Final = "error_in_stream"
NO_TERMINAL_EVENT: Final = "no_terminal_event"
EMPTY: Final = "empty"
SERVER_ERROR: Final = "server_error"
CANCELLED: Final = "cancelled"
UNFINISHED: Final = "unfinished"
ABORTED: Final = "aborted"

MEANINGS: Final = {
    CONNECT_REFUSED: "nobody listens at the target",
    CONNECT_TIMEOUT: "the connection was not accepted in time",
    CONNECT_FAILED: "the connection could not be made for another reason (see the message)",
    READ_TIMEOUT: "no byte of the response came for the whole read timeout",
    CLOSED_EARLY: "the server closed the connection before the response was over",
    HTTP_4XX: "the server refused the request (see the status)",
    HTTP_5XX: "the server failed (see the status)",
    HTTP_OTHER: "a status other than 200 that is no error either",
    BAD_STREAM: "the response does not follow its protocol (HTTP, SSE, JSON or the direct drive's frames)",
    ERROR_BODY: "status 200, but the body is an error object instead of a stream",
    ERROR_IN_STREAM: "an error object or error event inside a stream that began well",
    NO_TERMINAL_EVENT: "the response ended without a finish reason or [DONE]",
    EMPTY: "the response ended well, but no token arrived",
    SERVER_ERROR: "the server of the direct drive answered that this request failed",
    CANCELLED: "cancelled by the server, or by this process when it was told to stop at once",
    ABORTED: "cut by this load as it was told to (the abort mix): no failure of the server",
    UNFINISHED: "still running when the drain time was over",
}
