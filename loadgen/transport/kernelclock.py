"""When bytes reached this host's TCP stack, whoever reads them and however late: SO_TIMESTAMPNS on CLOCK_MONOTONIC.

The kernel stamps a segment on its wall clock when it comes in; `recvmsg` gives the stamp of the LAST segment that it
took bytes from, so bytes that came in several segments and are read at once share the time of the last. Unix sockets
carry no stamp. Under TLS the stamp is that of a record's last segment.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from contracts.clock import clock_pair

SO_TIMESTAMPNS: Final = getattr(socket, "SO_TIMESTAMPNS", 35)  # what Linux calls it on every machine that matters here
ANCILLARY_BYTES: Final = 64
TIMESPEC: Final = struct.Struct("qq")
_STEP_NS: Final = 200_000

Ancillary = Sequence[tuple[int, int, bytes]]


class KernelClock:
    """Turns stamps into CLOCK_MONOTONIC ns. One per process; `refresh` it several times a second.

    Both clocks are slewed alike, so their distance moves only when somebody sets the wall clock. `steps` counts how
    often that was seen; a stamp from between the step and the next refresh is off by as much, which the caller must
    notice by its being impossible (in the future, or before what it answers).
    """

    __slots__ = ("offset_ns", "steps", "worst_lag_ns")

    def __init__(self) -> None:
        self.offset_ns = 0
        self.worst_lag_ns = -1
        self.steps = -1
        self.refresh()

    def refresh(self) -> None:
        """Measure the distance of the two clocks again."""
        pair = clock_pair()
        offset_ns = pair.monotonic_ns - pair.realtime_ns
        if abs(offset_ns - self.offset_ns) > _STEP_NS:
            self.steps += 1
            self.offset_ns = offset_ns

    def arrival_ns(self, ancillary: Ancillary) -> int:
        """Give the stamp in a `recvmsg`'s ancillary data on CLOCK_MONOTONIC, 0 if there is none.

        The stamp is the only ancillary data that our sockets ask for.
        """
        if not ancillary or len(ancillary[0][2]) != TIMESPEC.size:
            return 0
        seconds, ns = TIMESPEC.unpack(ancillary[0][2])
        return seconds * 1_000_000_000 + ns + self.offset_ns  # type: ignore[no-any-return]

    def take_worst_lag_ns(self) -> int | None:
        """Give the longest lag that readers noted since the last call; None when nothing stamped came."""
        worst, self.worst_lag_ns = self.worst_lag_ns, -1
        return None if worst < 0 else worst


def stamp_arrivals(held: Any) -> bool:
    """Ask the kernel to stamp what this TCP socket receives; False where it cannot."""
    try:
        held.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
