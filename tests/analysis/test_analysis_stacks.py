"""py-spy's raw lines into shares of wall time."""

import pytest

from analysis.gil.stacks import UNNAMED, Function, count_holders, group_of, is_executor_loop
from contracts.folder import GilStacks

LOOKS = GilStacks(pid=1, rate_hz=100, start_ns=0, end_ns=1, attempts=220, samples=100, errors=20, complete=True)
ROOT = "Thread._bootstrap (threading.py:1002);Thread.run (threading.py:982)"


def test_a_share_is_the_count_over_the_looks_that_told_anything() -> None:
    holders = count_holders([f"thread (8): executor_loop;{ROOT};step (harness/loop.py:3) 50\n"], LOOKS)
    assert holders.by_thread == {"executor_loop": 0.25}
    assert holders.looks == 200
    assert holders.missed == pytest.approx(20 / 220)


def test_pool_threads_share_a_name_and_keep_their_own() -> None:
    lines = [f"thread (0x7f): asyncio_{n};{ROOT};loads (pickle.py:1) 10\n" for n in range(4)]
    holders = count_holders(lines, LOOKS)
    assert holders.by_thread == {"asyncio_*": 0.2}
    assert holders.by_raw_thread["asyncio_3"] == 0.05


@pytest.mark.parametrize(
    ("thread", "group"),
    [
        ("asyncio_3", "asyncio_*"),
        ("rpc_server_worker_12", "rpc_server_worker_*"),
        ("ThreadPoolExecutor-0_1", "ThreadPoolExecutor_*"),
        ("executor_loop", "executor_loop"),
        ("MainThread", "MainThread"),
        ("rank0", "rank0"),
    ],
)
def test_only_a_numbered_tail_makes_a_pool(thread: str, group: str) -> None:
    assert group_of(thread) == group


def test_lines_of_one_stack_at_two_places_of_a_function_add_up() -> None:
    lines = [f"thread (8): executor_loop;step (harness/loop.py:{line}) 10\n" for line in (3, 4)]
    holders = count_holders(lines, LOOKS)
    assert holders.by_function == {("executor_loop", Function("step (harness/loop.py)", "step (harness/loop.py)")): 0.1}


def test_the_serving_codes_frame_is_named_above_a_library_leaf() -> None:
    line = f"thread (8): rpc;{ROOT};handle (harness/rpc.py:7);recv (zmq/sugar/socket.py:9);loads (pickle.py:9) 1\n"
    ((_, function),) = count_holders([line], LOOKS).by_function
    assert function == Function("loads (pickle.py)", "handle (harness/rpc.py)")


def test_a_script_outside_any_package_is_serving_code() -> None:
    line = "thread (8): x;work (spin.py:4);loads (/usr/lib/python3.11/pickle.py:9) 1\n"
    ((_, function),) = count_holders([line], LOOKS).by_function
    assert function.own == "work (spin.py)"


def test_a_stack_of_libraries_alone_names_its_leaf() -> None:
    ((_, function),) = count_holders([f"thread (8): x;{ROOT} 1\n"], LOOKS).by_function
    assert function.own == function.leaf == "Thread.run (threading.py)"


def test_threads_without_a_name_and_semicolon_free_lines_are_kept() -> None:
    holders = count_holders(["thread (0x7F00) 2\n", "thread (0x7F01);f (a.py:1) 2\n"], LOOKS)
    assert holders.by_thread == {UNNAMED: 0.02}


def test_a_cut_off_last_line_is_left_out() -> None:
    assert count_holders(["thread (8): a;f (a.py:1) 4\n", "thread (8): a;f (a.p"], LOOKS).total == 0.02


def test_the_executor_loop_is_known_by_the_names_servers_give_it() -> None:
    assert is_executor_loop("executor_loop")
    assert is_executor_loop("PyExecutor._event_loop_wrapper")
    assert not is_executor_loop("rpc_client_loop")
