import pytest

from contracts.errors import UsageError
from harness.reference.settings import KNOBS, ReferenceSettings


def test_defaults_hold_where_the_environment_says_nothing() -> None:
    assert ReferenceSettings.from_env({"PATH": "/bin"}) == ReferenceSettings()


def test_every_setting_can_be_given_by_its_variable() -> None:
    given = {knob.env: str(knob.choices[-1] if knob.choices else knob.kind(knob.low or 1)) for knob in KNOBS}
    settings = ReferenceSettings.from_env(given)
    assert all(str(getattr(settings, knob.field)) == given[knob.env] for knob in KNOBS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TLLM_RPC_SUBMIT_BATCH_MAX", "0", "at least 1"),
        ("TLLM_RPC_SUBMIT_BATCH_MAX", "many", "an integer"),
        ("TLLM_RPC_SUBMIT_BATCH_DELAY_MS", "nan", "a number"),
        ("REFSTACK_LAYOUT", "thraed", "did you mean 'thread'"),
        ("TLLM_RPC_SUBMIT_BATCHMAX", "8", "did you mean TLLM_RPC_SUBMIT_BATCH_MAX"),
        ("REFSTACK_NOTHING_LIKE_IT", "8", "has no setting"),
    ],
)
def test_a_bad_name_or_value_is_refused_with_what_to_do(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReferenceSettings.from_env({name: value})


def test_names_are_unique_and_each_setting_says_what_it_does() -> None:
    assert len({knob.env for knob in KNOBS}) == len(KNOBS)
    assert all(knob.help for knob in KNOBS)
