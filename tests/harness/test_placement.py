import pytest

from harness.placement import place


@pytest.mark.parametrize("one_process", [False, True])
@pytest.mark.parametrize("count", [4, 5, 16])
def test_with_four_cores_or_more_the_roles_are_apart(count: int, one_process: bool) -> None:
    placement, doubts = place(range(count), one_process=one_process, over_http=False)
    assert doubts == ()
    server = set(placement.server) | set(placement.rank0)
    assert not server & set(placement.load)
    assert not server & set(placement.observers)
    assert not set(placement.load) & set(placement.observers)


@pytest.mark.parametrize("one_process", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_with_fewer_the_executor_keeps_its_core_and_a_doubt_says_what_is_shared(count: int, one_process: bool) -> None:
    placement, doubts = place(range(count), one_process=one_process, over_http=False)
    assert [doubt.code for doubt in doubts] == ["cpu_shared"]
    executor = placement.server if one_process else placement.rank0
    assert not set(executor) & set(placement.load)


def test_one_core_pins_nothing_and_says_so() -> None:
    placement, doubts = place([3], one_process=False, over_http=False)
    assert set(placement.describe().values()) == {"any"}
    assert [doubt.code for doubt in doubts] == ["cpu_shared"]


def test_only_the_cores_given_are_used() -> None:
    placement, _ = place([5, 9, 11, 12], one_process=False, over_http=False)
    assert {*placement.rank0, *placement.server, *placement.load, *placement.observers} == {5, 9, 11, 12}


def test_over_http_with_two_cores_the_load_is_not_tied_to_the_front_ends() -> None:
    placement, doubts = place([0, 1], one_process=False, over_http=True)
    assert (placement.rank0, placement.server, placement.load) == ([0], [1], [0, 1])
    assert [doubt.code for doubt in doubts] == ["cpu_shared"]
