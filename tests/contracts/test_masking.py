import pytest

from contracts.masking import MASK, is_secret, mask_argv, mask_mapping, mask_text


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "HF_TOKEN", "api-key", "Authorization", "DB_PASSWORD", "aws_secret", "Cookie", "apikey"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "TLLM_RPC_SUBMIT_BATCH_MAX", "output_tokens", "monkey", "tokenizer", "keyboard", "PATH"]
)
def test_other_names_are_left_alone(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:hunter2secret@host/path",
        "Authorization: Bearer hunter2secret",
        "OPENAI_API_KEY=hunter2secret",
        "key sk-hunter2secret here",
    ],
)
def test_secrets_in_text_are_masked(text: str) -> None:
    assert "hunter2secret" not in mask_text(text)


def test_command_lines_are_masked_in_both_spellings() -> None:
    masked = mask_argv(["loadgen", "--api-key", "s3cret", "--hf-token=s3cret", "--max-tokens", "5"])
    assert masked == ["loadgen", "--api-key", MASK, f"--hf-token={MASK}", "--max-tokens", "5"]


def test_mappings_are_masked_by_name() -> None:
    assert mask_mapping({"A_TOKEN": "x", "B": "y"}) == {"A_TOKEN": MASK, "B": "y"}
