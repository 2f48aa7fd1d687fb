import json
from collections import Counter
from dataclasses import replace

from contracts.load import WorkloadSpec
from harness.plan import ONE_AT_A_TIME, LoadPlan, Plan, cells_of, settings_of

LOAD = LoadPlan("rpc", "completions", WorkloadSpec(64, 8, seed=9), 5.0, None, 1.0, 1.0, 10.0, 1)
PLAN = Plan("reference", {"A": ["1", "2", "3"], "B": ["x", "y"]}, [8, 16], 4, 7, LOAD, observe=True, quick=False)


def test_every_block_runs_every_combination_once() -> None:
    cells = cells_of(PLAN)
    assert len(cells) == 3 * 2 * 2 * 4
    for block in range(1, 5):
        inside = Counter((cell.knobs["A"], cell.knobs["B"], cell.concurrency) for cell in cells if cell.block == block)
        assert set(inside.values()) == {1}
        assert len(inside) == 12


def test_blocks_run_one_after_the_other_each_in_its_own_order() -> None:
    cells = cells_of(PLAN)
    assert [cell.block for cell in cells] == sorted(cell.block for cell in cells)
    orders = {tuple((c.knobs["A"], c.knobs["B"], c.concurrency) for c in cells if c.block == b) for b in range(1, 5)}
    assert len(orders) > 1


def test_the_order_follows_from_the_seed() -> None:
    assert cells_of(PLAN) == cells_of(PLAN)
    assert cells_of(PLAN) != cells_of(Plan(**{**{n: getattr(PLAN, n) for n in PLAN.__slots__}, "seed": 8}))


def test_a_plan_survives_the_way_through_sweep_json() -> None:
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_slugs_are_unique_safe_names_that_begin_with_the_id() -> None:
    plan = Plan("reference", {"A": ["a/b c", "../../x"]}, [8], 2, 1, LOAD, observe=True, quick=False)
    slugs = [cell.slug for cell in cells_of(plan)]
    assert len(set(slugs)) == len(slugs)
    assert all("/" not in slug and " " not in slug for slug in slugs)
    assert all(cell.slug.startswith(cell.id) for cell in cells_of(plan))


def test_one_at_a_time_turns_each_value_alone() -> None:
    plan = replace(PLAN, design=ONE_AT_A_TIME, repeats=1, concurrency=[8])
    assert [tuple(setting.values()) for setting in settings_of(plan)] == [
        ("1", "x"),
        ("2", "x"),
        ("3", "x"),
        ("1", "y"),
    ]
    assert len(cells_of(plan)) == 4
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_the_baseline_is_each_factors_first_value() -> None:
    assert PLAN.baseline == {"A": "1", "B": "x"}
