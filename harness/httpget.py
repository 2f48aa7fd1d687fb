"""The harness's few HTTP calls to a server on this machine or beside it, with the standard library."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def call(url: str, path: str, *, body: Mapping[str, Any] | None = None, timeout_s: float) -> tuple[int, bytes]:
    """GET `path`, or POST `body` as JSON; return status and body. Raises OSError and HTTPException."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    try:
        where = parts.path.rstrip("/") + path
        if body is None:
            connection.request("GET", where)
        else:
            connection.request("POST", where, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def get_json(url: str, path: str, *, timeout_s: float) -> Any:
    """GET a JSON document. Raises OSError, HTTPException and ValueError, also for a status other than 200."""
    status, content = call(url, path, timeout_s=timeout_s)
    if status != 200:
        raise ValueError(f"GET {path} answered {status}")
    return json.loads(content)
