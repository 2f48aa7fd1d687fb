"""Text and tokens: a byte-level vocabulary for prompts and one word per sampled token, reversible both ways.

Ids 0 to 255 are bytes, id 2 also ends a sequence when sampled (its text is empty), ids from 256 are the words ` w256`,
` w257`, ...
"""

import re
from collections.abc import Iterable

from harness.reference.types import EOS_ID, FIRST_TEXT_ID, VOCAB_SIZE

_WORD = re.compile(r" w(\d{3,5})(?!\d)")


def encode(text: str) -> list[int]:
    """Turn a prompt into token ids."""
    ids: list[int] = []
    position = 0
    for match in _WORD.finditer(text):
        word = int(match[1])
        if not FIRST_TEXT_ID <= word < VOCAB_SIZE or match[1] != str(word):
            continue
        ids.extend(text[position : match.start()].encode())
        ids.append(word)
        position = match.end()
    ids.extend(text[position:].encode())
    return ids


def decode(ids: Iterable[int]) -> str:
    """Turn sampled tokens into text."""
    return "".join(
        "" if token == EOS_ID else f" w{token}" for token in ids if token >= FIRST_TEXT_ID or token == EOS_ID
    )
