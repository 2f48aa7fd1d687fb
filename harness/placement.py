"""Which cores the executor's process, the rest of the server, the load and the observers get."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.doubts import Doubt


@dataclass(frozen=True, slots=True)
class Placement:
    """Core numbers by role; an empty sequence leaves a role to the kernel's scheduler."""

    rank0: Sequence[int] = ()
    server: Sequence[int] = ()
    load: Sequence[int] = ()
    observers: Sequence[int] = ()

    @property
    def load_beside_server(self) -> bool:
        """Say whether load and server share a core."""
        return bool(set(self.load) & (set(self.server) | set(self.rank0)))

    def describe(self) -> Mapping[str, str]:
        named = {"rank0": self.rank0, "server": self.server, "load": self.load, "observers": self.observers}
        return {role: ",".join(map(str, cpus)) or "any" for role, cpus in named.items()}


def place(cpus: Sequence[int], *, one_process: bool, over_http: bool) -> tuple[Placement, tuple[Doubt, ...]]:
    """Spread the roles over `cpus`, the executor's process first; with too few cores roles share, and a doubt says so.

    `one_process` says that the server has no process for the executor alone: it then gets the executor's core whole.
    `over_http` says that a front end works as hard as the executor: with two cores the load is then not tied to the
    front end's, which would starve it of the CPU that its time stamps need.
    """
    cpus = sorted(cpus)
    if len(cpus) == 1:
        return Placement(), (Doubt("cpu_shared", "one core for server, client and observers"),)
    if len(cpus) == 2:
        first, second = [cpus[0]], [cpus[1]]
        server, shared = (first, "load and observers") if one_process else (second, "proxy, load and observers")
        if over_http and not one_process:
            detail = f"core {cpus[0]} for the executor's process, core {cpus[1]} for the front end, load on either"
            return Placement(rank0=first, server=second, load=cpus, observers=second), (Doubt("cpu_shared", detail),)
        doubt = Doubt("cpu_shared", f"core {cpus[0]} for the executor's process, core {cpus[1]} for {shared}")
        return Placement(rank0=first, server=server, load=second, observers=second), (doubt,)
    if len(cpus) == 3:
        server = cpus[:2] if one_process else [cpus[1]]
        doubt = Doubt("cpu_shared", f"core {cpus[2]} for load and observers")
        return Placement(rank0=[cpus[0]], server=server, load=[cpus[2]], observers=[cpus[2]]), (doubt,)
    server = cpus[:2] if one_process else [cpus[1]]
    return Placement(rank0=[cpus[0]], server=server, load=cpus[2:-1], observers=[cpus[-1]]), ()


def available_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))
