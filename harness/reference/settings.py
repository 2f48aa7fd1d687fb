"""Every setting of the reference stack, declared once: field, environment variable, serve option, bounds, meaning."""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from typing import Any

from contracts.errors import UsageError


@dataclass(frozen=True, slots=True)
class Knob:
    """How one setting is named from outside and what it accepts."""

    field: str
    env: str
    kind: type
    default: Any
    help: str
    published: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]

    @property
    def option(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def values(self) -> str:
        """What it accepts, for a table or a usage line."""
        if self.choices:
            return "|".join(self.choices)
        noun = "integer" if self.kind is int else "number"
        return noun if self.low is None else f"{noun} >= {self.low:g}"

    def parse(self, text: str, *, given_as: str | None = None) -> Any:
        """Turn a value from the environment or the command line into the setting's type, or raise UsageError.

        `given_as` is what the error says was given, where that was not the variable.
        """
        given = given_as or f"{self.env}={text}"
        if self.choices:
            chosen = text.lower()
            if chosen not in self.choices:
                near = difflib.get_close_matches(chosen, self.choices, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise UsageError(f"{given}: expected {_describe(self)}{hint}")
            return chosen
        try:
            value = self.kind(text)
        except ValueError as error:
            raise UsageError(f"{given}: expected {_describe(self)}") from error
        below = self.low is not None and not value >= self.low
        above = self.high is not None and not value <= self.high
        if below or above:
            raise UsageError(f"{given}: expected {_describe(self)}")
        return value


def _describe(knob: Knob) -> str:
    if knob.choices:
        return "one of " + ", ".join(knob.choices)
    noun = "an integer" if knob.kind is int else "a number"
    bounds = [f"at least {knob.low:g}" if knob.low is not None else "", f"at most {knob.high:g}" if knob.high else ""]
    return " ".join([noun, " and ".join(part for part in bounds if part)]).strip()


def _knob(
    default: Any,
    env: str,
    help: str,  # noqa: A002 - argparse's word for it
    *,
    published: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    meta = {"env": env, "help": help, "published": published, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """What a reference stack is launched with. The defaults are a host-bound generation server (see docs)."""

    preset: str = _knob(
        "none",
        "REFSTACK_PRESET",
        "defaults of the other settings, as the original was in May 2026 or is now; what is given explicitly wins",
        choices=("none", "original-2026-05", "current"),
        published="#14889, #15133, #15134, #15211",
    )
    submit_batch_max: int = _knob(
        1,
        "TLLM_RPC_SUBMIT_BATCH_MAX",
        "requests per submit RPC; 1 sends each alone",
        low=1,
        high=65536,
        published="TensorRT-LLM #15109",
    )
    submit_batch_delay_ms: float = _knob(
        0.5,
        "TLLM_RPC_SUBMIT_BATCH_DELAY_MS",
        "how long a partly filled batch waits, ms",
        low=0,
        high=10_000,
        published="#15109",
    )
    layout: str = _knob(
        "pool",
        "REFSTACK_LAYOUT",
        "pool: rank 0 in a process of its own; leader: on a thread of a leader process; "
        "thread: on a thread of the server, so that HTTP, proxy and rank 0 share one GIL",
        choices=("pool", "thread", "leader"),
    )
    host_work: str = _knob(
        "faithful",
        "REFSTACK_HOST_WORK",
        "faithful: per-request Python work in the loop, as in the original; lean: the same, vectorised",
        choices=("faithful", "lean"),
    )
    max_batch_size: int = _knob(2048, "REFSTACK_MAX_BATCH_SIZE", "active requests per step", low=1, high=65536)
    max_num_tokens: int = _knob(
        0, "REFSTACK_MAX_NUM_TOKENS", "prompt tokens per step; 0: no limit (context arrives from elsewhere)", low=0
    )
    max_seq_len: int = _knob(65536, "REFSTACK_MAX_SEQ_LEN", "prompt plus output tokens per request", low=2)
    tokens_per_block: int = _knob(32, "REFSTACK_TOKENS_PER_BLOCK", "tokens per KV-cache block", low=1, high=4096)
    kv_cache_blocks: int = _knob(
        524288, "REFSTACK_KV_CACHE_BLOCKS", "KV-cache blocks in all; requests wait when none is free", low=1
    )
    stream_interval: int = _knob(
        1,
        "REFSTACK_STREAM_INTERVAL",
        "tokens between two responses of a request",
        low=1,
        published="#5284",
    )
    device: str = _knob(
        "emulated",
        "REFSTACK_DEVICE",
        "emulated: steps take the time that the settings below say; torch: a small decoder really runs, on CUDA or CPU "
        "(extra torch)",
        choices=("emulated", "torch"),
    )
    device_base_ms: float = _knob(5.0, "REFSTACK_DEVICE_BASE_MS", "device step time, fixed part, ms", low=0, high=1e5)
    device_per_request_us: float = _knob(
        0.0, "REFSTACK_DEVICE_PER_REQUEST_US", "device step time per active request, us", low=0, high=1e6
    )
    device_per_prompt_token_us: float = _knob(
        0.0, "REFSTACK_DEVICE_PER_PROMPT_TOKEN_US", "device step time per new prompt token, us", low=0, high=1e6
    )
    device_calls: int = _knob(
        64,
        "REFSTACK_DEVICE_CALLS",
        "operator launches per step; each releases and retakes the GIL",
        low=0,
        high=100_000,
    )
    token_ids: str = _knob(
        "list",
        "REFSTACK_TOKEN_IDS",
        "prompts on the wire: list pickles every token; int32 packs them into bytes that rank 0 takes whole",
        choices=("list", "int32"),
        published="#15134, #15171, #15211",
    )
    enqueue_copy: str = _knob(
        "list",
        "REFSTACK_ENQUEUE_COPY",
        "what rank 0 does to a list of token ids before its engine request is built",
        choices=("deepcopy", "list", "none"),
        published="#14889",
    )
    submit: str = _knob(
        "rpc",
        "REFSTACK_SUBMIT",
        "in-process: call rank 0 directly where it shares the proxy's process (layout thread), else rpc",
        choices=("rpc", "in-process"),
        published="#15114",
    )
    rpc_receive: str = _knob(
        "poll",
        "REFSTACK_RPC_RECEIVE",
        "how an RPC socket is awaited: poll tries and sleeps, event wakes every idle task for each message",
        choices=("poll", "event"),
    )
    rpc_tasks: int = _knob(
        6,
        "REFSTACK_RPC_TASKS",
        "request tasks on rank 0's socket; the response stream keeps one (each further front end brings one more)",
        low=2,
        high=256,
    )
    rpc_poll_ms: float = _knob(
        10.0, "REFSTACK_RPC_POLL_MS", "sleep between two tries of an empty RPC socket, ms", low=0.01, high=1000
    )
    ranks: int = _knob(
        1, "REFSTACK_RANKS", "ranks; those beside 0 are processes that share the requests (attention DP)", low=1, high=8
    )
    root_unpickle: str = _knob(
        "off",
        "REFSTACK_ROOT_UNPICKLE",
        "whether rank 0 reads its own broadcast back",
        choices=("on", "off"),
        published="#15133",
    )
    double_getter: str = _knob(
        "off",
        "REFSTACK_DOUBLE_GETTER",
        "whether routing copies each prompt twice to learn its length",
        choices=("on", "off"),
        published="#15133",
    )
    overlap: str = _knob(
        "on", "REFSTACK_OVERLAP", "overlap scheduler: respond for a step while the next one runs", choices=("on", "off")
    )
    switch_interval_ms: float = _knob(
        5.0, "REFSTACK_SWITCH_INTERVAL_MS", "sys.setswitchinterval of rank 0's process, ms", low=0.001, high=1000
    )
    gil_probe: str = _knob(
        "on", "REFSTACK_GIL_PROBE", "time the loop's own GIL wait, turn by turn (see docs)", choices=("on", "off")
    )
    gc: str = _knob(
        "threshold",
        "REFSTACK_GC",
        "garbage collector of rank 0: default, threshold (the setting below), frozen after start, off",
        choices=("default", "threshold", "frozen", "off"),
        published="#7995, #13907, #14218",
    )
    gc_gen0_threshold: int = _knob(
        20000,
        "REFSTACK_GC_GEN0_THRESHOLD",
        "generation-0 threshold where gc is threshold or frozen",
        low=1,
        published="#14218",
    )
    json: str = _knob(
        "stdlib",
        "REFSTACK_JSON",
        "HTTP bodies and chunks: stdlib's loads and pydantic's dump, as in the original; or orjson for both "
        "(extra fast)",
        choices=("stdlib", "orjson"),
        published="#15690",
    )
    http_frontends: int = _knob(
        1,
        "REFSTACK_HTTP_FRONTENDS",
        "HTTP processes on one executor; they share the port, and the direct drive stays with the first",
        low=1,
        high=64,
        published="#16413, #16523 (--num_serve_frontends, on the classic path)",
    )
    postproc_workers: int = _knob(
        0,
        "REFSTACK_POSTPROC_WORKERS",
        "processes that detokenise and write the chunks of HTTP answers, fed by rank 0; 0: the HTTP loop does it",
        low=0,
        high=64,
        published="num_postprocess_workers",
    )
    iter_log: str = _knob(
        "extended",
        "REFSTACK_ITER_LOG",
        "a log line per turn: original, as print_iter_log has it; original-rc15, as it had it until 1.3.0rc15; "
        "extended, with microseconds and keys of ours (new requests, submits, the loop's GIL wait)",
        published="print_iter_log",
        choices=("extended", "original", "original-rc15"),
    )
    log_level: str = _knob(
        "info",
        "TLLM_LOG_LEVEL",
        "what the stack's log says; below info each message, request and response list is spelled out",
        published="TLLM_LOG_LEVEL",
        choices=("debug", "info", "warning", "error"),
    )
    perf_metrics_max_requests: int = _knob(
        65536, "REFSTACK_PERF_METRICS_MAX_REQUESTS", "finished requests kept for /perf_metrics; 0: none", low=0
    )
    request_timeout_s: float = _knob(
        180.0, "REFSTACK_REQUEST_TIMEOUT_S", "time after which the proxy gives a request up, s", low=0.1
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "ReferenceSettings":
        """Read every setting's variable; absent ones are as the preset says. Raises UsageError on a bad value."""
        return cls.of(given_in(os.environ if environ is None else environ))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "ReferenceSettings":
        """Make settings from explicit values, by field name; the preset among them decides what the others are."""
        return cls(**{**PRESETS[given.get("preset", "none")], **given})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _declared() -> tuple[Knob, ...]:
    return tuple(
        Knob(
            field=item.name,
            env=item.metadata["env"],
            kind=type(item.default),
            default=item.default,
            help=item.metadata["help"],
            published=item.metadata["published"],
            low=item.metadata["low"],
            high=item.metadata["high"],
            choices=item.metadata["choices"],
        )
        for item in fields(ReferenceSettings)
    )


KNOBS = _declared()

# Variables that can only be meant for us, and how like a setting any other must be to be taken for a typo of it.
OUR_PREFIXES = ("REFSTACK_", "TLLM_RPC_")
TYPO_LIKENESS = 0.85

# What the original did before its changes of mid-2026 (docs/reference-stack.md names them), and what it does now.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "original-2026-05": {
        "token_ids": "list",
        "enqueue_copy": "deepcopy",
        "root_unpickle": "on",
        "double_getter": "on",
        "submit": "rpc",
        "submit_batch_max": 1,
        "rpc_receive": "poll",
        "json": "stdlib",
    },
    "current": {
        "token_ids": "int32",
        "enqueue_copy": "list",
        "root_unpickle": "off",
        "double_getter": "off",
        "submit_batch_max": 1,
        "rpc_receive": "event",
    },
}


def given_in(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings that `environ` has, by field name. Raises UsageError on a bad value or an unknown setting."""
    known = {knob.env for knob in KNOBS}
    for name in environ:
        if name not in known and (name.startswith(OUR_PREFIXES) or _nearest(name, TYPO_LIKENESS)):
            raise UsageError(unknown_knob(name))
    return {knob.field: knob.parse(environ[knob.env]) for knob in KNOBS if knob.env in environ}


def unknown_knob(name: str) -> str:
    """Say that the reference stack has no such variable, with the nearest one it has."""
    near = _nearest(name, 0.5)
    hint = f"did you mean {near}?" if near else "loadgen serve --help lists them"
    return f"the reference stack has no setting {name}: {hint}"


def _nearest(name: str, likeness: float) -> str | None:
    near = difflib.get_close_matches(name.upper(), [knob.env for knob in KNOBS], 1, cutoff=likeness)
    return near[0] if near else None


def require_extras(settings: ReferenceSettings, installed: Callable[[str], object] = find_spec) -> None:
    """Refuse settings that need a library which is not installed. Raises UsageError with what to install."""
    for env, value, library, extra in (
        ("REFSTACK_JSON", settings.json, "orjson", "fast"),
        ("REFSTACK_DEVICE", settings.device, "torch", "torch"),
    ):
        if value == library and not installed(library):
            raise UsageError(f"{env}={value}: {library} is not installed; pip install 'loadgen-gil[{extra}]' brings it")
