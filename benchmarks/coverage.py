"""Do verdicts keep their word? Simulated sweeps with a planted effect, judged by the code that judges real ones.

    PYTHONPATH=. python benchmarks/coverage.py [--sweeps 1000] [--seed 1]

Each simulated sweep has its cells in shuffled blocks, as a real one has, and a throughput for each: the machine's level
at that moment, times the setting's true ratio, times noise. One setting or four are compared with the baseline; the
planted ratio is the last one's, the others do nothing. Machines:

    steady      noise of 3 % a cell, blocks at levels of their own
    noisy       noise of 10 %
    drifting    noise of 3 %, and the level wanders by 3 % from each cell to the next
    bad block   noise of 3 %; one block is a third slower and three times as noisy
    bad cell    noise of 3 %; one cell of one block lost 40 % to something else

Printed: how often all the intervals of a sweep held their truths at once (`covered`; 95 % is promised), how often a
setting without an effect got a verdict (`false`; in at most 5 % of the sweeps), and how often the planted one was found
with its right sign (`found`). The last two machines break the model's assumption of equal noise: their lines tell what
that costs. Exit status 1 when a line of the first four machines has less than 92 % covered, or more than 5 % false by
more than chance (three standard errors); more than 98 % covered is told, for it costs power.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis.compare import compare
from analysis.metrics import CellMetrics
from analysis.plan import Setting
from analysis.study import study_sweep
from analysis.tables import CellTables

SAMPLE = Path(__file__).parent.parent / "results" / "sample"
EFFECTS = (1.0, 1.03, 1.2)
DESIGNS = ((1, 3), (1, 6), (4, 3), (4, 6))
MEASURE = "output_tok_s"


@dataclass(frozen=True, slots=True)
class Machine:
    """`noise`, `wander` and `bad_noise` are relative; `bad_block` and `bad_cell` are factors on the throughput."""

    name: str
    noise: float = 0.03
    wander: float = 0.0
    bad_block: float = 1.0
    bad_noise: float = 1.0
    bad_cell: float = 1.0
    held_to_it: bool = True


MACHINES = (
    Machine("steady"),
    Machine("noisy", noise=0.10),
    Machine("drifting", wander=0.03),
    Machine("bad block", bad_block=2 / 3, bad_noise=3.0),
    Machine("bad cell", bad_cell=0.6, held_to_it=False),
)


@dataclass(slots=True)
class Tally:
    covered: int = 0
    false: int = 0
    found: int = 0


class Simulator:
    """Makes sweeps out of one real cell whose throughput is replaced, and judges them."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        first = study_sweep(SAMPLE).cells[0]
        empty = {
            "ttft_ms": None, "itl_ms": None, "icl_ms": None, "tpot_ms": None, "e2e_ms": None, "host_step_ms": None,
            "gil": None, "gil_probe_ms": None, "gil_held_fraction": None, "rpc_messages": None, "req_s": None,
        }  # fmt: skip
        self._tables = first.tables
        self._metrics = replace(first.metrics, **empty)  # type: ignore[arg-type]

    def throughputs(self, machine: Machine, ratios: Sequence[float], blocks: int) -> list[tuple[int, int, float]]:
        """Run a sweep's cells in order; give (block, setting, tok/s)."""
        random = self._random
        bad_block, bad_setting = int(random.integers(blocks)), int(random.integers(len(ratios)))
        level, cells = 0.0, []
        for block in range(blocks):
            jump = 0.3 * random.standard_normal()
            for setting in random.permutation(len(ratios)):
                level += machine.wander * random.standard_normal()
                noise = machine.noise * (machine.bad_noise if block == bad_block else 1.0)
                value = 1000.0 * ratios[setting] * math.exp(level + jump + noise * random.standard_normal())
                if block == bad_block:
                    value *= machine.bad_block * (machine.bad_cell if setting == bad_setting else 1.0)
                cells.append((block, int(setting), value))
        return cells

    def judge(self, machine: Machine, ratios: Sequence[float], blocks: int, tally: Tally) -> None:
        settings = [Setting((("knob", str(number)),)) for number in range(len(ratios))]
        cells: list[tuple[CellTables, CellMetrics]] = []
        for block, setting, value in self.throughputs(machine, ratios, blocks):
            info = replace(self._tables.info, block=block, concurrency=1)
            tables = replace(self._tables, info=info, setting=settings[setting])
            cells.append((tables, replace(self._metrics, output_tok_s=value)))
        comparison = compare(cells, settings[0], settings, blocks)
        effects = [comparison.effect(MEASURE, setting, 1) for setting in settings[1:]]
        held, false = True, False
        for effect, true in zip(effects, ratios[1:], strict=True):
            assert effect is not None
            assert effect.low is not None
            assert effect.high is not None
            held &= effect.low <= true <= effect.high
            false |= true == 1.0 and effect.decided
        tally.covered += held
        tally.false += false
        planted = effects[-1]
        tally.found += bool(planted and ratios[-1] > 1.0 and planted.verdict == "better")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    simulator = Simulator(np.random.default_rng(options.seed))
    slack = 3 * math.sqrt(0.05 * 0.95 / options.sweeps)
    kept = True
    print(f"{'machine':<11}{'settings':>9}{'blocks':>7}{'planted':>9}{'covered':>9}{'false':>8}{'found':>8}")
    for machine in MACHINES:
        for others, blocks in DESIGNS:
            for effect in EFFECTS:
                tally = Tally()
                ratios = [1.0] * others + [effect]
                for _ in range(options.sweeps):
                    simulator.judge(machine, ratios, blocks, tally)
                covered, false, found = (count / options.sweeps for count in (tally.covered, tally.false, tally.found))
                broken = covered < 0.92 or false > 0.05 + slack
                kept &= not (broken and machine.held_to_it)
                remark = "  BROKEN" if broken else "  wide" if covered > 0.98 else ""
                shown = "-" if effect == 1.0 else f"{found:.1%}"
                print(
                    f"{machine.name:<11}{others:>9}{blocks:>7}{effect - 1:>9.0%}{covered:>9.1%}{false:>8.1%}"
                    f"{shown:>8}{remark}",
                    flush=True,
                )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
