"""The closed list of warnings: what casts doubt on a result, and what to do about it."""

from dataclasses import dataclass

SAMPLES_MISSED_LIMIT = 0.10
"""The share of its looks above which an observer that missed them is warned of (`samples_missed`)."""

REMEDIES = {
    "client_saturated": "The load process ran out of CPU or woke late, so latencies include its own queue. Use more "
    "--workers on more cores, a shorter --osl, or a lower --concurrency.",
    "concurrency_not_reached": "Fewer requests were in flight than asked for. Lengthen --warmup or --osl, or see "
    "whether the front end or the client is the limit.",
    "few_repeats": "Fewer than three blocks: differences may be noise, so no verdict is given. Use --repeats 3 or "
    "more.",
    "warmup_short": "The window began before most users had finished a request. Lengthen --warmup.",
    "trace_ended": "The trace was over before the window was, which was cut short. Give a longer trace, a shorter "
    "--duration or --warmup, or a lower --time-scale.",
    "not_steady": "The cell had no steady state: a figure moved in one direction over its window, so its mean depends "
    "on when it was taken. Lengthen --warmup; if it goes on, a queue grows: the load is more than the server sustains.",
    "window_short": "The steady window holds too few completed requests for its percentiles. Lengthen --duration.",
    "requests_failed": "Some requests failed; latencies are of the others. Look at the errors in the raw table and at "
    "server.log.",
    "samples_missed": "The GIL sampler failed on many attempts; its shares are over the successful ones. Give the "
    "observers a core of their own.",
    "no_gil_samples": "There are no GIL samples for this cell. See the detail; `loadgen doctor` says which observers "
    "may work here and how to permit the rest.",
    "no_steps": "The server wrote no iteration log, so step times are unknown.",
    "ramp_window": "The window was a ramp: its figures are averages over a changing load. Compare stages that hold.",
    "machine_busy": "Other processes took CPU time, or the hypervisor did. Repeat on a quiet machine.",
    "cpu_shared": "There were too few cores to keep server, client and observers apart; they share cores and disturb "
    "each other. Compare within this sweep only.",
    "front_end_limited": "A front end, or a post-processing process, used its core up while the executor loop had time "
    "left: it is the limit. Use --drive rpc to isolate the executor path, or give the server more of them.",
    "drain_timeout": "Requests were still running when the drain time ended and were recorded as failures. Lengthen "
    "--drain.",
    "cell_failed": "The cell did not finish; see its error. --resume runs it again.",
    "observer_failed": "An observer stopped early; its records are incomplete.",
    "worker_lost": "A load machine was lost during the cell: what it had not sent is missing, and the load was smaller "
    "from then on. See why it went, and repeat.",
    "clock_unsure": "The clocks of the load machines are not known well enough against this one's, so requests at the "
    "window's edges may be counted wrongly. Latencies are not touched. Use a network with shorter round trips.",
    "file_limit": "The hard limit on open files forbids the users asked for. Raise it (ulimit -Hn) and repeat.",
    "beyond_selftest": "By loadgen selftest, one load process on this machine did not tell the truth at so many users. "
    "Use more --workers on more cores, or a lower --concurrency; measure again with loadgen selftest.",
    "cell_out_of_line": "One cell does not fit its block and its setting, by more than chance explains, and widens "
    "every interval at its concurrency. See what else ran then (its time lines, machine_busy); to measure it anew, "
    "move its folder away and give --resume.",
    "blocks_incomplete": "Some blocks lack a cell of this comparison; only complete pairs were used. --resume runs "
    "the missing ones.",
}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One warning: a code from the closed list, what was seen, and the cell it concerns (None: the sweep)."""

    code: str
    detail: str
    cell: str | None = None

    def __post_init__(self) -> None:
        if self.code not in REMEDIES:
            raise ValueError(f"unknown warning code {self.code!r}")

    @property
    def remedy(self) -> str:
        return REMEDIES[self.code]
