"""Which requests an exported summary is of. Other tools summarise a whole run; here it is the cell's steady window."""

from dataclasses import dataclass

import pandas as pd

from analysis.tables import CellTables
from analysis.window import Window
from contracts.errors import UsageError

ABORTED = "aborted"  # what the load cut as it was told to


@dataclass(frozen=True, slots=True)
class Population:
    """A cell's requests as its summary counts them, rows of `CellTables.requests`.

    `started` began inside the window, `measured` are those of them that succeeded: latencies and lengths are theirs.
    `completed` ended inside it and succeeded, `failed` ended inside it and did not (less what the load cut as told):
    counts and rates are theirs, over the window. `output_tokens` arrived inside it, of whatever request.
    """

    window: Window
    started: pd.DataFrame
    measured: pd.DataFrame
    completed: pd.DataFrame
    failed: pd.DataFrame
    output_tokens: float

    @property
    def length_s(self) -> float:
        return self.window.length_s

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of the completed requests."""
        return int(self.completed["prompt_tokens"].sum())


def population_of(cell: CellTables) -> Population:
    """Take a cell's requests apart. Raises UsageError when the cell did not get through its window."""
    window = cell.window
    if window is None:
        raise UsageError(f"cell {cell.info.id} ({cell.info.state}) has no steady window, so there is no summary of it")
    counted = cell.requests[cell.requests["error_kind"] != ABORTED]
    started = counted[counted["in_window"]]
    ended = counted[window.holds(counted["end_ns"])]
    return Population(
        window=window,
        started=started,
        measured=started[started["success"]],
        completed=ended[ended["success"]],
        failed=ended[~ended["success"]],
        output_tokens=float(cell.requests["tokens_in_window"].sum()),
    )
