import pytest

from contracts.doubts import REMEDIES, Doubt


def test_every_warning_has_a_remedy_and_unknown_codes_are_refused() -> None:
    assert all(Doubt(code, "x").remedy for code in REMEDIES)
    with pytest.raises(ValueError, match="unknown warning"):
        Doubt("no_such_code", "x")
