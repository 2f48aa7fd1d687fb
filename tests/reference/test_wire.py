import pickle

import pytest

from harness.reference.rpc.envelope import MAC_BYTES, RPCRequest, SealBroken, seal, unseal

KEY = b"k" * 32


class Bomb:
    """Unpickling this is noticed."""

    went_off = False

    def __reduce__(self) -> tuple[object, ...]:
        return (_ignite, ())


def _ignite() -> None:
    Bomb.went_off = True


def test_a_sealed_message_comes_back_as_it_was() -> None:
    request = RPCRequest("submit", ([1, 2, 3],), {})
    assert unseal(seal(request, KEY), KEY) == request


@pytest.mark.parametrize("position", [0, 10, -1, -MAC_BYTES])
def test_a_changed_byte_anywhere_breaks_the_seal(position: int) -> None:
    sealed = bytearray(seal(list(range(100)), KEY))
    sealed[position] ^= 1
    with pytest.raises(SealBroken):
        unseal(bytes(sealed), KEY)


@pytest.mark.parametrize("message", [b"", b"x", b"x" * MAC_BYTES])
def test_a_message_too_short_for_a_seal_is_refused(message: bytes) -> None:
    with pytest.raises(SealBroken):
        unseal(message, KEY)


def test_nothing_is_unpickled_before_its_seal_was_verified() -> None:
    forged = pickle.dumps(Bomb()) + b"\0" * MAC_BYTES
    with pytest.raises(SealBroken):
        unseal(forged, KEY)
    with pytest.raises(SealBroken):
        unseal(seal(Bomb(), b"another key" * 3), KEY)
    assert not Bomb.went_off
    unseal(seal(Bomb(), KEY), KEY)
    assert Bomb.went_off, "the bomb would have been noticed"
