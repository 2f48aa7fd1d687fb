"""Published claims about host overhead that a sweep can show, each held against what the sweep measured.

A claim is that one knob's value is better than another in one measure. `published` is the ratio that the claim states,
better over worse, so above 1; None where only a direction was published.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.compare import Comparison, Effect

REPRODUCED, DIRECTION, NOT_REPRODUCED, OPEN = "reproduced", "direction only", "not reproduced", "too few blocks"


@dataclass(frozen=True, slots=True)
class Claim:
    """`knob` at `better` against `knob` at `worse`, in `measure`; `above` is the least concurrency it speaks of."""

    id: str
    text: str
    source: str
    knob: str
    worse: str
    better: str
    measure: str
    published: float | None = None
    above: int = 0


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim and its measured ratio, better over worse as the claim states it, with the 95 % interval's bounds."""

    claim: Claim
    concurrency: int
    measured: float
    low: float | None
    high: float | None
    verdict: str


BATCH_MAX = "TLLM_RPC_SUBMIT_BATCH_MAX"
_SUBMITS = (
    ("gil_wait_ms_per_step.mean", "less GIL wait a step"),
    ("ttft_ms.p99", "lower TTFT p99"),
    ("output_tok_s", "more throughput"),
)

CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(f"batched_submit_{size}", f"submits in batches of {size}: {words}", "#15109", BATCH_MAX, "1", size, name)
        for size in ("8", "16", "32", "64")
        for name, words in _SUBMITS
    ),
    Claim("int32_ids", "int32 ids on the wire: shorter step", "#15134", "REFSTACK_TOKEN_IDS", "list", "int32",
          "host_step_ms.mean"),
    Claim("enqueue_copy", "a list copy instead of deepcopy: shorter step", "#14889", "REFSTACK_ENQUEUE_COPY",
          "deepcopy", "list", "host_step_ms.mean"),
    Claim("in_process_submit", "in-process submit: lower TTFT", "#15114", "REFSTACK_SUBMIT", "rpc", "in-process",
          "ttft_ms.p50"),
    Claim("root_unpickle", "no root self-unpickle: shorter step", "#15133", "REFSTACK_ROOT_UNPICKLE", "on", "off",
          "host_step_ms.mean", published=123.5 / 105),
    Claim("double_getter", "one token getter: shorter step", "#15133", "REFSTACK_DOUBLE_GETTER", "on", "off",
          "host_step_ms.mean", published=123.5 / 105),
    Claim("gc_pauses", "a higher collector threshold: shorter slow steps", "#14218", "REFSTACK_GC", "default",
          "threshold", "host_step_ms.p99"),
    Claim("stream_interval", "responses every 20 tokens: shorter step", "#5284", "REFSTACK_STREAM_INTERVAL", "1", "20",
          "host_step_ms.mean", above=1024),
)  # fmt: skip


def judge(published: float | None, low: float | None, high: float | None) -> str:
    """Give the verdict on an interval that should lie above 1, and reach `published` where that was said."""
    if low is None or high is None:
        return OPEN
    if low <= 1:
        return NOT_REPRODUCED
    return REPRODUCED if published is None or high >= published else DIRECTION


def claims_shown(comparison: Comparison, claims: Sequence[Claim] = CLAIMS) -> list[ClaimRow]:
    """Find the claims that the sweep can speak of: those whose knob alone is turned from `worse` to `better`."""
    rows = []
    for claim in claims:
        for effect in comparison.effects:
            if effect.measure.name != claim.measure or effect.ratio is None or effect.concurrency < claim.above:
                continue
            if effect.setting.turned_from(comparison.baseline) == {claim.knob: (claim.worse, claim.better)}:
                rows.append(_row(claim, effect))
    return rows


def _row(claim: Claim, effect: Effect) -> ClaimRow:
    assert effect.ratio is not None
    if effect.measure.better > 0:
        measured, low, high = effect.ratio, effect.low, effect.high
    else:
        measured = 1 / effect.ratio
        low = None if effect.high is None else 1 / effect.high
        high = None if effect.low is None else 1 / effect.low
    return ClaimRow(claim, effect.concurrency, measured, low, high, judge(claim.published, low, high))
