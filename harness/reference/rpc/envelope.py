"""What travels between proxy and rank 0, and how it is sealed: pickle, then a 32-byte HMAC-SHA256 trailer."""

import hashlib
import hmac
import pickle
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

MAC_BYTES = 32
KEY_BYTES = 32


class SealBroken(Exception):  # noqa: N818 - it names what happened
    """A message whose HMAC does not match: not ours, or altered. It was not unpickled."""


class RPCError(Exception):
    """The remote method failed, or the remote side is gone."""


class RPCTimeout(RPCError):  # noqa: N818 - it names what happened
    """No answer came within the call's timeout."""


@dataclass
class RPCRequest:
    """One call. `timeout` is in seconds; `creation_timestamp` is on CLOCK_MONOTONIC, in seconds."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    need_response: bool = True
    timeout: float | None = None
    is_streaming: bool = False
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    creation_timestamp: float = field(default_factory=time.monotonic)


@dataclass
class RPCResponse:
    """One answer, or one part of a stream (`stream_status` start | data | end | error)."""

    request_id: str
    result: Any
    error: str | None = None
    is_streaming: bool = False
    sequence: int = 0
    stream_status: str | None = None


def seal(message: object, key: bytes) -> bytes:
    """Pickle with the default protocol and append the MAC."""
    data = pickle.dumps(message)
    return data + hmac.new(key, data, hashlib.sha256).digest()


def unseal(sealed: bytes, key: bytes) -> Any:
    """Check the MAC in constant time, and only then unpickle. Raises SealBroken."""
    data, mac = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
    if len(sealed) <= MAC_BYTES or not hmac.compare_digest(hmac.new(key, data, hashlib.sha256).digest(), mac):
        raise SealBroken(f"a message of {len(sealed)} bytes has no valid HMAC; it was dropped")
    return pickle.loads(data)  # noqa: S301 - authenticated above
