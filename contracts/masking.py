"""Secrets are masked before anything is written: by name for variables and headers, by shape for URLs and text."""

import re
from collections.abc import Mapping, Sequence

MASK = "***"
_SECRET_NAME = re.compile(
    r"(^|_)((API|HMAC)?_?KEYS?|TOKEN|SECRETS?|PASSWORDS?|PASSWD|AUTHORIZATION|CREDENTIALS?|COOKIES?)$", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@]*@", re.IGNORECASE)
_BEARER = re.compile(r"\b(?P<kind>Bearer|Basic)\s+[A-Za-z0-9+/=._~-]+", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z0-9_-]+)(?P<sep>\s*[=:]\s*)(?P<value>\S+)")
_OPENAI_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")


def is_secret(name: str) -> bool:
    """Say whether a variable, header or option of this name holds a secret."""
    return _SECRET_NAME.search(name.replace("-", "_")) is not None


def mask_text(text: str) -> str:
    """Mask URL credentials, bearer tokens, API keys and NAME=value pairs with a secret's name."""
    text = _URL_PASSWORD.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<kind> {MASK}", text)
    text = _OPENAI_KEY.sub(MASK, text)

    def hide(match: re.Match[str]) -> str:
        if not is_secret(match["name"]):
            return match[0]
        return f"{match['name']}{match['sep']}{MASK}"

    return _ASSIGNMENT.sub(hide, text)


def mask_mapping(values: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret(name) else mask_text(value) for name, value in values.items()}


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Mask a command line, including `--api-key VALUE` given as two words."""
    masked: list[str] = []
    hide_next = False
    for word in argv:
        masked.append(MASK if hide_next else mask_text(word))
        hide_next = word.startswith("--") and "=" not in word and is_secret(word)
    return masked
