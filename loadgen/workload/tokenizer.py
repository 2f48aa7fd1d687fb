"""A model's tokenizer: how many tokens a text has, and words that are one token each wherever they stand.

Prompts put together from such words, with a blank between them, have as many tokens as words: no merge crosses a word.
The words are found by trying, on the tokenizer itself, so that it does not matter of which kind it is.
"""

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import UsageError

_MARKS = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}\N{LOWER ONE EIGHTH BLOCK} "  # what vocabularies write a blank as
_WORD = re.compile(r"^[a-z]{2,}$", re.ASCII)
_MOST_WORDS = 8192
_LEAST_WORDS = 16
_ROUNDS = 3
_SAMPLES, _LONGEST_SAMPLE = 200, 400


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words of lower-case ASCII letters that are one token each after a blank, and the ids of those tokens.

    The first `starters` of them are so at a text's beginning, too.
    """

    words: Sequence[str]
    ids: Sequence[int]
    starters: int


class Tokenizer:
    """A `tokenizer.json` of the tokenizers library, or a folder that holds one. Raises UsageError.

    Special tokens and a chat template's own are not counted: they are the server's.
    """

    def __init__(self, path: Path) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would take cores from what is measured
        try:
            import tokenizers
        except ImportError as error:
            raise UsageError(
                "--tokenizer needs the tokenizers library: pip install 'loadgen-gil[tokenizer]'"
            ) from error
        self.path = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises a bare one, whatever it is
            raise UsageError(f"{self.path} is no tokenizer.json that can be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text. The library lets go of the GIL meanwhile."""
        return [len(one) for one in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def vocabulary(self) -> Vocabulary:
        """Find the words that are one token each, and make sure of it. The same for equal tokenizers."""
        seeded = random.Random(0)  # noqa: S311 - an order to try words in, not a secret
        words = sorted({token.strip(_MARKS) for token in self._tokenizer.get_vocab(with_added_tokens=False)})
        words = [word for word in words if _WORD.match(word)]
        seeded.shuffle(words)
        found: dict[str, int] = {}
        words = words[:_MOST_WORDS]
        for _ in range(_ROUNDS):
            found = self._whole(words)
            words = list(found)
            seeded.shuffle(words)
        alone = self.count(words)
        starters = [word for word, count in zip(words, alone, strict=True) if count == 1]
        others = [word for word, count in zip(words, alone, strict=True) if count != 1]
        words = starters + others
        vocabulary = Vocabulary(words, [found[word] for word in words], len(starters))
        if len(starters) < _LEAST_WORDS:
            raise UsageError(
                f"{self.path}: only {len(starters)} of its words are one token each, too few to make prompts of"
            )
        self._make_sure(vocabulary, seeded)
        return vocabulary

    def _whole(self, words: Sequence[str]) -> dict[str, int]:
        """Give those words of a text that one token covers, with or without the blank before, and their ids."""
        encoding = self._tokenizer.encode(" ".join(("a", *words)), add_special_tokens=False)
        covered = {end: (start, number) for (start, end), number in zip(encoding.offsets, encoding.ids, strict=True)}
        found = {}
        at = 2
        for word in words:
            start, number = covered.get(at + len(word), (-1, -1))
            if start in (at - 1, at) and at not in covered:  # no token is for the blank alone
                found[word] = number
            at += len(word) + 1
        return found

    def _make_sure(self, vocabulary: Vocabulary, seeded: random.Random) -> None:
        wanted = [1 + seeded.randrange(_LONGEST_SAMPLE) for _ in range(_SAMPLES)]
        starters = vocabulary.words[: vocabulary.starters]
        texts = [" ".join((seeded.choice(starters), *seeded.choices(vocabulary.words, k=n - 1))) for n in wanted]
        wrong = sum(one != two for one, two in zip(self.count(texts), wanted, strict=True))
        if wrong:
            raise UsageError(
                f"{self.path}: {wrong} of {_SAMPLES} sample prompts do not have as many tokens as words; "
                f"prompts of exact length cannot be made for it"
            )
