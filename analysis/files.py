"""Record files as a kill leaves them: absent, empty, or cut off before the schema was whole."""

from collections.abc import Iterable
from pathlib import Path

_CONTINUATION = b"\xff\xff\xff\xff"


def readable(paths: Iterable[Path]) -> list[Path]:
    """Keep the files whose Arrow schema message is whole; what else is wrong with them the reader shall say.

    An Arrow stream begins with four bytes of ones and the schema message's length in four little-endian bytes. A file
    that ends before that length was killed while its first second of rows was on the way, and holds none.
    """
    return [path for path in paths if path.exists() and not _cut_in_schema(path)]


def _cut_in_schema(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(8)
    if not _CONTINUATION.startswith(head[:4]):
        return False  # no Arrow stream at all: the reader refuses it by name
    return len(head) < 8 or path.stat().st_size < 8 + int.from_bytes(head[4:], "little")
