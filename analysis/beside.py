"""Work on the parts of a large sweep in several processes beside each other."""

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

WORTH_PROCESSES = 24  # cells from which on starting processes costs less than it saves

Part = TypeVar("Part")
Result = TypeVar("Result")


def beside(work: Callable[[Part], Result], parts: Sequence[Part], *, cells: int, processes: int) -> list[Result]:
    """Do the work on each part, results in the parts' order; in so many processes when the sweep has many cells.

    `work`, the parts and the results must then be picklable, and the program's main module safe to import.
    """
    if processes < 2 or len(parts) < 2 or cells < WORTH_PROCESSES:
        return [work(part) for part in parts]
    # the many rows of a cell go by reference counts alone; a collector would walk them again and again
    with ProcessPoolExecutor(
        min(processes, len(parts)), mp_context=get_context("spawn"), initializer=gc.disable
    ) as pool:
        return list(pool.map(work, parts))
