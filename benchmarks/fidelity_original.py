"""The original's RPC layer in figures: medians of a transcription of it, measured on this kind of machine.

Python 3.11, pyzmq 27.3, 2 virtual cores, CPU scaled by the fixed loop to 7.1 ms. `list` prompts are lists of ids below
128k, `int32` the same as bytes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Submit:
    """CPU us per request and voluntary / involuntary context switches of the server, `batch` requests in a call."""

    wire: str
    isl: int
    batch: int
    server_us: float
    client_us: float
    voluntary: float
    involuntary: float


SUBMITS = (
    Submit("list", 128, 1, 324, 338, 2.2, 1.0),
    Submit("list", 1024, 1, 343, 357, 2.3, 1.0),
    Submit("list", 4096, 1, 540, 471, 3.2, 1.3),
    Submit("list", 40000, 1, 2995, 1750, 3.9, 2.1),
    Submit("int32", 128, 1, 302, 357, 2.6, 1.2),
    Submit("int32", 1024, 1, 280, 323, 2.1, 1.2),
    Submit("int32", 4096, 1, 319, 383, 3.4, 1.0),
    Submit("int32", 40000, 1, 868, 764, 3.1, 1.5),
    Submit("list", 128, 32, 50, 33, 0.13, 0.04),
    Submit("list", 1024, 32, 139, 68, 0.16, 0.05),
    Submit("list", 4096, 32, 362, 198, 0.21, 0.08),
    Submit("list", 40000, 32, 2646, 1684, 1.1, 0.5),
    Submit("int32", 128, 32, 33, 27, 0.12, 0.04),
    Submit("int32", 1024, 32, 41, 31, 0.12, 0.05),
    Submit("int32", 4096, 32, 79, 77, 0.17, 0.08),
    Submit("int32", 40000, 32, 616, 480, 0.5, 0.6),
)

# (wire, ISL, requests a call): us of CPU per request on server and client at 192/s, idle CPU taken off, not scaled
PACED = {
    ("list", 1024, 1): (564, 724), ("list", 4096, 1): (790, 765), ("int32", 4096, 1): (536, 701),
    ("list", 1024, 32): (142, 73), ("list", 4096, 32): (344, 172), ("int32", 4096, 32): (105, 85),
}  # fmt: skip

# list size: us of CPU per streamed response on server and client
STREAMS = {64: (5.5, 6.5), 256: (3.7, 4.2), 2048: (3.7, 3.7)}

LATENCY_MS = {"poll": (6.6, 12.4), "event": (2.1, 4.0)}  # idle, p50 and p99
IDLE_PERCENT = {"poll": (5.3, 3.1), "event": (0.4, None)}  # of a core, server and client


@dataclass(frozen=True, slots=True)
class Loss:
    """What a loop in the server loses of its CPU share (%) at `rate` requests/s, and what is served of them per s."""

    loop: str
    receive: str
    wire: str
    isl: int
    batch: int
    rate: int
    lost_percent: float
    served: float | None = None


LOSSES = tuple(
    Loss("busy", "poll", wire, isl, batch, rate, lost, served)
    for wire, isl, batch, figures in (
        ("list", 1024, 1, ((20, 1.6, 15), (100, 6.3, 75), (300, 9.7, 214), (600, 10.4, 217))),
        ("list", 4096, 1, ((20, 2.4, 16), (100, 9.1, 76), (300, 10.1, 140), (600, 7.6, 136))),
        ("int32", 4096, 1, ((20, 2.0, 16), (100, 5.9, 77), (300, 7.7, 171), (600, 5.3, 128))),
        ("list", 1024, 32, ((20, 0.3, None), (100, 1.4, None), (300, 3.0, None), (600, 4.1, 478))),
        ("list", 4096, 32, ((20, 0.9, None), (100, 2.9, None), (300, 6.9, None), (600, 15.2, 478))),
        ("int32", 4096, 32, ((20, 0.1, None), (100, 0.8, None), (300, 2.9, None), (600, 3.8, 478))),
    )
    for rate, lost, served in figures
) + tuple(
    Loss("releasing", receive, wire, isl, batch, rate, lost)
    for receive, wire, isl, batch, figures in (
        ("poll", "list", 1024, 1, ((100, 6.3), (300, 13.9))),
        ("poll", "list", 1024, 32, ((100, 0.9), (300, 5.5))),
        ("poll", "list", 4096, 1, ((100, 7.9), (300, 19.2))),
        ("poll", "list", 4096, 32, ((100, 4.0), (300, 9.8))),
        ("poll", "int32", 4096, 1, ((100, 4.9), (300, 10.8))),
        ("poll", "int32", 4096, 32, ((100, 0.0), (300, 1.1))),
        ("event", "list", 1024, 1, ((100, 15.1), (300, 32.1))),
    )
    for rate, lost in figures
)  # fmt: skip
