"""The plan of a sweep: factors x concurrency x blocks, and the order in which its cells run."""

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from contracts.load import WorkloadSpec
from harness.stages import STAGE_KNOB, Stage, stage_names

FACTORIAL, ONE_AT_A_TIME = "factorial", "one_at_a_time"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load of every cell. Times in s; `duration_s` None means that `requests`, or a trace's end, end the window.

    `warmup_s` is the least time between the last user's start and the window; the window also waits until as many
    requests have ended as there are users. `rate_rps` is of all load processes together; the rest from `arrival` on is
    as in contracts.load.LoadSpec. With `stages` one load passes through them all, and each is a cell of its own.
    """

    drive: str
    endpoint: str
    workload: WorkloadSpec
    duration_s: float | None
    requests: int | None
    warmup_s: float
    ramp_s: float
    drain_s: float
    workers: int
    arrival: str = "closed"
    rate_rps: float | None = None
    burstiness: float = 1.0
    think_s: float = 0.0
    abort_fraction: float = 0.0
    abort_after_tokens: int = 8
    give_up_s: float = 10.0
    locustfile: str | None = None
    web_port: int | None = None
    keep_alive: bool = True
    tls_verify: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Stage] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep is going to do. `factors` maps a knob of the server to its values; the first is the baseline.

    `design` is `factorial` (every combination of values) or `one_at_a_time` (the baseline, and each other value alone).
    `slo` is the objective that analysis holds the cells against (analysis.slo).
    """

    stack: str
    factors: Mapping[str, Sequence[str]]
    concurrency: Sequence[int]
    repeats: int
    seed: int
    load: LoadPlan
    observe: bool
    quick: bool
    design: str = FACTORIAL
    slo: str | None = None

    @property
    def baseline(self) -> dict[str, str]:
        return {name: values[0] for name, values in self.factors.items()}

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        load = document.pop("load")
        workload = load.pop("workload")
        return {**document, **load, **workload, "workload_seed": workload["seed"], "seed": self.seed}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        """Rebuild a plan from sweep.json, for --resume."""

        def fields_of(kind: type[Any], **extra: Any) -> dict[str, Any]:
            return {name: document[name] for name in kind.__dataclass_fields__ if name in document} | extra

        workload = WorkloadSpec.from_json({**document, "seed": document["workload_seed"]})
        stages = tuple(Stage(**stage) for stage in document.get("stages", ()))
        load = LoadPlan(**fields_of(LoadPlan, workload=workload, stages=stages))
        return cls(**fields_of(cls, load=load))


@dataclass(frozen=True, slots=True)
class Cell:
    """One knob setting at one concurrency in one block; `index` is its place in the order, from 1.

    A stage of a staged load is a cell too; `step` is its place in that load, from 1.
    """

    index: int
    block: int
    knobs: Mapping[str, str]
    concurrency: int
    stage: Stage | None = None
    step: int = 0

    @property
    def slug(self) -> str:
        values = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", value) for value in self.knobs.values())
        return f"{self.index:03d}-b{self.block}-c{self.concurrency}" + (f"-{values}" if values else "")

    @property
    def id(self) -> str:
        return self.slug[:3]


def settings_of(plan: Plan) -> list[dict[str, str]]:
    """List the knob settings of the plan's design, the baseline first."""
    if plan.design == ONE_AT_A_TIME:
        others = [{**plan.baseline, name: value} for name, values in plan.factors.items() for value in values[1:]]
        return [plan.baseline, *others]
    return [dict(zip(plan.factors, values, strict=True)) for values in itertools.product(*plan.factors.values())]


def groups_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Put the stages of one load together; any other cell stands alone."""
    groups: list[list[Cell]] = []
    for cell in cells:
        if cell.step > 1:
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return groups


def cells_of(plan: Plan) -> list[Cell]:
    """Lay the cells out: each block runs every setting once, in an order shuffled by the plan's seed.

    Stages keep their order.
    """
    stages = plan.load.stages
    if stages:
        names = stage_names(stages) if STAGE_KNOB in plan.factors else None
        return [
            Cell(
                index=(block - 1) * len(stages) + step,
                block=block,
                knobs={} if names is None else {STAGE_KNOB: names[step - 1]},
                concurrency=stage.users,
                stage=stage,
                step=step,
            )
            for block in range(1, plan.repeats + 1)
            for step, stage in enumerate(stages, 1)
        ]
    rng = random.Random(plan.seed)  # noqa: S311 - a recorded shuffle, not a secret
    settings = settings_of(plan)
    cells: list[Cell] = []
    for block in range(1, plan.repeats + 1):
        combinations = list(itertools.product(settings, plan.concurrency))
        rng.shuffle(combinations)
        for knobs, concurrency in combinations:
            cells.append(Cell(len(cells) + 1, block, knobs, concurrency))
    return cells
