"""The scaling law on sweeps drawn from it, record by record, with known parameters; and on ones that disobey."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lawful import OUTPUT, PROMPT, TRUTH, lawful_sweep
from scipy import integrate, stats
from synthetic import KNOB, Recipe, write_sweep

from analysis.report.page import write_report
from analysis.scaling.law import Workload, gathered, mean_of_longer
from analysis.scaling.points import OPERATIONS, LeftOutError, observe
from analysis.scaling.questions import parse_what_if
from analysis.scaling.study import Scaling, study_scaling
from analysis.scaling.whatif import Answer
from analysis.study import Study, study_sweep
from contracts.errors import UsageError
from loadgen.cli.main import main

Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def lawful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lawful_sweep(tmp_path_factory.mktemp("lawful") / "sweep")


@pytest.fixture(scope="module")
def disobedient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a sweep whose GIL wait has nothing to do with the work: the more there is, the less it waits."""
    return lawful_sweep(
        tmp_path_factory.mktemp("disobedient") / "sweep",
        blocks=1,
        wait=lambda users, batch, wait_ms: 200.0 / users if batch > 1 else wait_ms,
    )


@pytest.fixture(scope="module")
def study(lawful: Path) -> Study:
    return study_sweep(lawful)


@pytest.fixture(scope="module")
def scaling(study: Study) -> Scaling:
    return study_scaling(study)


@pytest.fixture(scope="module")
def ask(study: Study) -> Ask:
    def answer(question: str, objective: str | None = None) -> Answer:
        (found,) = study_scaling(replace(study, objective=objective), [parse_what_if(question)]).answers
        return found

    return answer


def test_service_times_are_those_that_the_looks_were_drawn_from(scaling: Scaling) -> None:
    (group,) = scaling.laws
    found = {one.operation: one for one in group.services}
    assert set(found) == set(OPERATIONS[:4]), "all prompts are of one length: their tokens cannot be told from requests"
    for n, name in enumerate(OPERATIONS[:4]):
        loop, others = TRUTH.services.loop[n], TRUTH.services.others[n]
        assert found[name].loop_ms == pytest.approx(loop, rel=0.25, abs=4 * found[name].loop_error_ms)
        assert found[name].others_ms == pytest.approx(others, rel=0.25, abs=4 * found[name].others_error_ms)


def test_the_parameters_are_recovered(scaling: Scaling) -> None:
    law = scaling.laws[0].law
    assert law is not None
    assert law.contention == pytest.approx(TRUTH.contention, rel=0.2)
    assert law.own == pytest.approx(TRUTH.own, rel=0.15)
    assert law.gathering == pytest.approx(TRUTH.gathering, rel=0.15)
    assert law.device == pytest.approx([15.0, 0, 0], abs=1e-6)
    assert law.turns_a_token == pytest.approx(1.0, abs=0.05)


def test_the_law_holds_on_points_it_has_not_seen(scaling: Scaling) -> None:
    (group,) = scaling.laws
    assert group.reason is None
    assert all(one.holds and one.mean is not None and one.mean < 0.12 for one in group.held_out)
    assert len(group.held_out[0].points) == 6
    assert all(point.blocks == 2 and point.low <= point.measured <= point.high for point in group.held_out[0].points)


def test_a_cell_that_was_not_run_is_predicted(ask: Ask) -> None:
    answer = ask(f"concurrency=72,{KNOB}=4")
    truth = TRUTH.solve(Workload(72, PROMPT, OUTPUT, 4))
    assert answer.refusal is None
    assert answer.notes == ()
    assert answer.predicted is not None
    assert answer.predicted.wait_ms == pytest.approx(truth.wait_ms, rel=0.15)
    assert answer.predicted.step_ms == pytest.approx(truth.step_ms, rel=0.1)
    assert answer.predicted.ttft_ms == pytest.approx(truth.ttft_ms, rel=0.1)
    assert answer.predicted.output_tok_s == pytest.approx(truth.output_tok_s, rel=0.1)
    assert answer.errors["gil_wait_ms_per_step"] is not None


def test_users_tokens_and_latencies_of_a_prediction_belong_together() -> None:
    at = TRUTH.solve(Workload(80, PROMPT, OUTPUT, 8))
    assert at.req_s / 1e3 * at.e2e_ms == pytest.approx(80), "Little's law"
    assert at.output_tok_s == pytest.approx(at.active / at.step_ms * 1e3)


def test_an_objective_gives_the_greatest_concurrency_that_meets_it(ask: Ask) -> None:
    answer = ask("concurrency=48", "ttft_ms:p99<70")
    truth = next(n for n in range(96, 0, -1) if TRUTH.solve(Workload(n, PROMPT, OUTPUT, 1)).ttft_ms * 1.15 < 70)
    assert answer.sustained is not None
    assert answer.sustained.concurrency == pytest.approx(truth, rel=0.15)
    assert ask("concurrency=48", "ttft_ms:p99<1").sustained.concurrency is None  # type: ignore[union-attr]


def test_extrapolation_is_flagged_and_far_extrapolation_refused(ask: Ask) -> None:
    near = ask("concurrency=144")
    assert near.predicted is not None
    assert any("1.5 times beyond the greatest that was run, 96" in note for note in near.notes)
    far = ask("concurrency=960")
    assert far.predicted is None
    assert "too far from what was run: concurrency=960 is 10.0 times" in (far.refusal or "")
    other = ask("isl=6000")
    assert other.predicted is None
    assert "nothing tells what others cost" in (other.refusal or "")


def test_a_length_of_output_that_no_left_out_cell_had_is_said_so(ask: Ask) -> None:
    assert any("no cell had a mean osl of 24" in note for note in ask("osl=24").notes)


def test_what_a_sweep_disobeys_the_law_in_is_withheld_with_its_error_and_the_rest_is_told(
    disobedient: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(disobedient), "--out", str(page), "--what-if", "concurrency=64", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (law,), (answer,) = document["laws"], document["what_if"]
    holds = {one["metric"]: one["holds"] for one in law["held_out"]}
    error = law["held_out"][0]["error"]
    assert error > 0.2
    assert not holds["gil_wait_ms_per_step"]
    assert any(holds.values())
    assert answer["refused"] is None
    assert answer["predicted"]["gil_wait_ms_per_step"] is None
    told = {metric.partition(".")[0] for metric, held in holds.items() if held}
    assert all(answer["predicted"][name] is not None for name in told)
    sentence = f"no prediction of GIL wait a step: the model does not hold for it, held-out error {error:.0%}"
    assert any(sentence in note for note in answer["notes"])
    assert "does not hold" in page.read_text()


def test_predictions_are_printed_and_in_the_report(
    lawful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    question = f"{KNOB}=4,concurrency=72"
    assert main(["report", str(lawful), "--out", str(page), "--what-if", question, "--slo", "ttft_ms<70"]) == 0
    printed = capsys.readouterr().out
    assert "GIL wait a step" in printed
    assert "up to " in printed
    assert printed.rstrip().endswith(str(page))
    text = page.read_text()
    assert 'id="scaling"' in text
    assert "How far the law is off" in text
    assert "predicted at 72" in text


def test_show_has_the_law_and_the_answers(lawful: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(lawful), "--json", "--what-if", "concurrency=72"]) == 0
    scaling = json.loads(capsys.readouterr().out)["scaling"]
    assert scaling["what_if"][0]["predicted"]["gil_wait_ms_per_step"] > 0
    assert scaling["laws"][0]["parameters"]["contention"] > 0
    assert {one["knobs"][KNOB] for one in scaling["knees"]} == {"1", "8"}


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("concurency=96", "did you mean concurrency?"),
        ("TLLM_RPC_SUBMIT_BACH_MAX=4", f"did you mean {KNOB}?"),
        ("concurrency", "expected NAME=VALUE"),
        ("concurrency=many", "expected a whole number"),
        ("concurrency=0", "expected a whole number"),
        ("concurrency=4,concurrency=5", "once, please"),
        (f"{KNOB}=off", "expected a whole number"),
        ("zzz=1", "it knows concurrency, isl, osl"),
    ],
)
def test_a_bad_question_ends_with_status_2(
    tmp_path: Path, question: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(tmp_path / "sweep", [("1", 8, 0, Recipe()), ("8", 8, 0, Recipe())])
    try:
        status = main(["show", str(sweep), "--what-if", question])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert told in capsys.readouterr().err


def test_a_value_that_was_not_run_of_a_knob_without_a_term_is_refused(tmp_path: Path) -> None:
    cells = [(value, 8, block, Recipe()) for block in (0, 1) for value in ("list", "int32")]
    study = study_sweep(write_sweep(tmp_path, cells, knob="REFSTACK_TOKEN_IDS"))
    with pytest.raises(UsageError, match=r"no term for REFSTACK_TOKEN_IDS.*list, int32"):
        study_scaling(study, [parse_what_if("REFSTACK_TOKEN_IDS=int64")])
    (answer,) = study_scaling(study, [parse_what_if("REFSTACK_TOKEN_IDS=int32")]).answers
    assert "no cell can be taken, most often because it has no looks at the GIL" in (answer.refusal or "")


@pytest.mark.parametrize("users", [(24,), (24, 48)])
def test_one_or_two_points_have_service_times_and_no_law(tmp_path: Path, users: tuple[int, ...]) -> None:
    sweep = lawful_sweep(tmp_path / "sweep", concurrency=users, batches=(1,), blocks=1)
    scaling = study_scaling(study_sweep(sweep), [parse_what_if("concurrency=32")])
    (group,), (answer,) = scaling.laws, scaling.answers
    assert group.law is None
    assert all(np.isnan(one.loop_error_ms) for one in group.services)
    assert "a law takes 3" in (answer.refusal or "")
    assert write_report(sweep, tmp_path / "report.html").exists()


def test_a_window_in_which_not_every_user_got_an_answer_is_left_out(tmp_path: Path) -> None:
    slow = Recipe(users=8, ttft_ms=9000.0, window_s=4.0)
    (cell,) = study_sweep(write_sweep(tmp_path, [("1", 8, 0, slow)])).cells
    with pytest.raises(LeftOutError, match="too short for a steady state: 0 requests ended in it, of 8 users"):
        observe(cell)


@pytest.mark.parametrize(("device", "host", "spread"), [(5, 3, 0.3), (5, 5, 0.3), (5, 9, 0.2), (0, 4, 0.1), (5, 6, 0)])
def test_the_longer_of_device_and_host_has_the_mean_of_the_distribution(
    device: float, host: float, spread: float
) -> None:
    if spread == 0:
        assert mean_of_longer(device, host, spread) == max(device, host)
        return
    normal = stats.norm(host, spread * host)
    above, _ = integrate.quad(lambda t: t * normal.pdf(t), device, host + 12 * spread * host)
    assert mean_of_longer(device, host, spread) == pytest.approx(above + device * normal.cdf(device), abs=1e-6)


def test_requests_gather_into_messages_the_more_the_more_arrive() -> None:
    assert gathered(5.0, 1, 1.6) == 1
    assert gathered(0.0, 32, 1.6) == 1
    few, many = gathered(1.0, 32, 1.6), gathered(10.0, 32, 1.6)
    assert 1 / 32 < many < few < 1
    assert np.isclose(gathered(1e9, 32, 1.6), 1 / 32)
