import argparse
import re

import pytest

from contracts.errors import UsageError
from harness.reference.serve import add_options, settings_from
from harness.reference.settings import KNOBS, PRESETS, ReferenceSettings, require_extras


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
        ("REFSTACK_PRESET", "orignal-2026", "did you mean 'original-2026-05'"),
        ("REFSTACK_LAYOUT", "thraed", "did you mean 'thread'"),
        ("TLLM_RPC_SUBMIT_BATCHMAX", "8", "did you mean TLLM_RPC_SUBMIT_BATCH_MAX"),
        ("TLLM_RPC_SUBMIT_BACH_MAX", "8", "did you mean TLLM_RPC_SUBMIT_BATCH_MAX"),
        ("TLLM_RCP_SUBMIT_BATCH_MAX", "8", "did you mean TLLM_RPC_SUBMIT_BATCH_MAX"),
        ("REFSTAK_LAYOUT", "pool", "did you mean REFSTACK_LAYOUT"),
        ("refstack_layout", "pool", "did you mean REFSTACK_LAYOUT"),
        ("TLLM_LOG_LEVEL", "inof", "did you mean 'info'"),
        ("REFSTACK_NOTHING_LIKE_IT", "8", "has no setting"),
    ],
)
def test_a_bad_name_or_value_is_refused_with_what_to_do(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReferenceSettings.from_env({name: value})


def test_variables_of_others_are_none_of_our_business() -> None:
    others = {"TLLM_LLMAPI_ZMQ_PAIR": "1", "TRTLLM_SERVER_DISABLE_GC": "1", "LOG_LEVEL": "x", "LAYOUT": "us"}
    assert ReferenceSettings.from_env(others) == ReferenceSettings()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layout", "thraed"], "--layout thraed: expected one of pool, thread, leader; did you mean 'thread'?"),
        (["--submit-batch-max", "8x"], "--submit-batch-max 8x: expected an integer at least 1"),
    ],
)
def test_a_bad_option_value_is_refused_as_it_was_given(words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(UsageError, match=re.escape(message)):
        settings_from(parser.parse_args(words))


def test_choices_may_be_given_in_capitals() -> None:
    assert ReferenceSettings.from_env({"TLLM_LOG_LEVEL": "WARNING"}).log_level == "warning"


def test_a_preset_sets_what_is_not_given() -> None:
    early = ReferenceSettings.from_env({"REFSTACK_PRESET": "original-2026-05", "REFSTACK_ENQUEUE_COPY": "none"})
    assert (early.root_unpickle, early.double_getter, early.rpc_receive) == ("on", "on", "poll")
    assert early.enqueue_copy == "none", "the explicit one wins"
    now = ReferenceSettings.from_env({"REFSTACK_PRESET": "current"})
    assert (now.token_ids, now.enqueue_copy, now.rpc_receive, now.root_unpickle) == ("int32", "list", "event", "off")
    assert now.max_batch_size == ReferenceSettings().max_batch_size


def test_an_option_wins_over_the_environment_and_both_over_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTACK_PRESET", "current")
    monkeypatch.setenv("REFSTACK_RPC_RECEIVE", "poll")
    monkeypatch.setenv("REFSTACK_RANKS", "2")
    parser = argparse.ArgumentParser()
    add_options(parser)
    settings = settings_from(parser.parse_args(["--ranks", "3", "--preset", "original-2026-05"]))
    assert (settings.preset, settings.ranks, settings.rpc_receive) == ("original-2026-05", 3, "poll")
    assert settings.token_ids == "list"


def test_presets_name_only_settings_that_exist_with_values_they_accept() -> None:
    by_field = {knob.field: knob for knob in KNOBS}
    assert set(PRESETS) == set(by_field["preset"].choices)
    for preset in PRESETS.values():
        assert all(by_field[name].parse(str(value)) == value for name, value in preset.items())


def test_a_setting_whose_library_is_not_installed_is_refused_with_what_to_install() -> None:
    settings = ReferenceSettings(json="orjson")
    with pytest.raises(UsageError, match=r"orjson is not installed; pip install 'loadgen-gil\[fast\]'"):
        require_extras(settings, installed=lambda _: None)
    require_extras(settings, installed=lambda _: "there")
    require_extras(ReferenceSettings(), installed=lambda _: None)


def test_names_are_unique_and_each_setting_says_what_it_does() -> None:
    assert len({knob.env for knob in KNOBS}) == len(KNOBS)
    assert all(knob.help for knob in KNOBS)
