"""Tables of lengths: what a notation stands for, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from contracts.errors import UsageError
from contracts.load import WorkloadSpec
from loadgen.workload.lengths import read_lengths
from loadgen.workload.synthetic import Workload


def drawn(spec: WorkloadSpec, count: int = 20_000) -> tuple[list[int], list[int]]:
    workload = Workload(spec)
    draws = [workload.draw(n % 50, n // 50) for n in range(count)]
    return [draw.prompt_tokens for draw in draws], [draw.max_tokens for draw in draws]


@pytest.mark.parametrize(
    ("text", "spread", "least", "most"),
    [
        (100, 0.0, 100, 100),
        ("100", 0.2, 80, 120),
        ("fixed:100", 0.2, 100, 100),
        ("uniform:min=3,max=9", 0.2, 3, 9),
    ],
)
def test_plain_and_uniform_lengths_have_exactly_these_bounds(
    text: int | str, spread: float, least: int, most: int
) -> None:
    values = read_lengths(text, spread).values
    assert (min(values), max(values)) == (least, most)
    assert sorted(values) == list(range(least, most + 1))


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
@pytest.mark.parametrize("width", ["cv=0.25", "std=1024"])
def test_a_normal_or_lognormal_draw_has_the_mean_and_deviation_asked_for(kind: str, width: str) -> None:
    prompts, _ = drawn(WorkloadSpec(f"{kind}:mean=4096,{width}", 64))
    assert np.mean(prompts) == pytest.approx(4096, rel=0.01)
    assert np.std(prompts) == pytest.approx(1024, rel=0.03)


def test_a_lognormal_is_skewed_as_one_is() -> None:
    prompts, _ = drawn(WorkloadSpec("lognormal:mean=1000,cv=1", 64))
    assert np.median(prompts) == pytest.approx(1000 / 2**0.5, rel=0.03)
    assert np.percentile(prompts, 84.134) == pytest.approx(1000 / 2**0.5 * np.exp(np.log(2) ** 0.5), rel=0.05)


def test_bounds_cut_a_distribution_off_without_piling_up_at_them() -> None:
    values = np.array(read_lengths("normal:mean=100,std=50,min=80,max=120").values)
    assert (values.min(), values.max()) == (80, 120)
    assert np.mean(values == 120) < 0.03


def test_a_file_of_lengths_is_drawn_from_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("# measured\n10\n\n20\n20  # twice\n20\n")
    prompts, outputs = drawn(WorkloadSpec(f"@{file}", 64, osl_spread=0))
    assert set(prompts) == {10, 20}
    assert prompts.count(10) / len(prompts) == pytest.approx(0.25, rel=0.1)
    assert set(outputs) == {64}


def test_pairs_of_a_file_stay_together(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("10,1\n20,2\n30 3\n")
    prompts, outputs = drawn(WorkloadSpec(f"@{file}", f"@{file}"))
    assert set(zip(prompts, outputs, strict=True)) == {(10, 1), (20, 2), (30, 3)}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "whole number"),
        ("0", "whole number"),
        ("-5", "whole number"),
        ("4.5", "whole number"),
        ("fixed:", "whole number"),
        ("pareto:mean=5", "pareto"),
        ("normal:mean=5", "std= and cv="),
        ("normal:mean=5,std=1,cv=1", "std= and cv="),
        ("normal:mean=5,std=0", "above 0"),
        ("normal:mean=5,std=nan", "above 0"),
        ("normal:mean=x,std=1", "no number"),
        ("normal:mean=5,std=1,std=2", "each once"),
        ("lognormal:mu=5,cv=1", "mu"),
        ("normal:mean=100,std=1,min=500", "nearly nothing"),
        ("uniform:min=9,max=3", "not above"),
        ("uniform:min=9", "min=A,max=B"),
    ],
)
def test_what_is_no_notation_says_why_and_what_would_be(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=f"--isl .*{named}.*expected N, fixed:N"):
        read_lengths(text, what="--isl")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "holds no lengths"),
        ("10\nten\n", ":2: 'ten'"),
        ("10\n0\n", ":2: '0'"),
        ("10 5\n10\n", ":2: 1 values"),
        ("1 2 3\n", ":1: 3 values"),
    ],
)
def test_a_bad_file_of_lengths_is_named_with_the_line(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(content)
    with pytest.raises(UsageError, match=named):
        read_lengths(f"@{file}")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_lengths(f"@{tmp_path / 'none'}")
