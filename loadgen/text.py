"""Making text of whatever a server sent, so that it can go into a record."""

from typing import Any

_MOST_CHARS = 500


def clean(value: Any) -> str:
    """Give bounded text without lone surrogates, which no file could hold."""
    return str(value)[:_MOST_CHARS].encode("utf-8", "replace").decode()


def excerpt(data: bytes | bytearray) -> str:
    return data[:_MOST_CHARS].decode("utf-8", "replace")
