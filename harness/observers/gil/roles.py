"""What a process is within a serving stack, told from its command line or the title that it gave itself.

Known are the reference stack's processes, TensorRT-LLM's (trtllm-serve, MPI workers with their rank), vLLM's and
SGLang's (which set titles: `VLLM::EngineCore_DP0`, `sglang::scheduler_TP0`). Any other is called by its module, script
or program.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from contracts.errors import UsageError
from harness.observers.gil.processes import Process, variables

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_NUMBER = re.compile(r"((_(DP|TP|PP|EP|SP|CP|DCP|PCP)\d+)+|[_ ]?\d+)$")
_INTERPRETER = re.compile(r"python(\d(\.\d+)?t?)?$")
_TITLE = re.compile(r"^[\w.-]+::(?P<name>\S+)")
_TAKES_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_CODE = {
    "from multiprocessing.resource_tracker": "resource_tracker",
    "from multiprocessing.forkserver": "forkserver",
    "from multiprocessing.spawn": "multiprocessing",
}
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Role:
    """A process's name within its stack (`rank0`, `EngineCore_DP0`), and what else it goes by."""

    name: str
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, with and without their number."""
        given = (self.name, *self.also)
        return tuple(dict.fromkeys([*given, *(_NUMBER.sub("", name) for name in given)]))


_MODULES: Mapping[str, Role] = {
    "harness.reference.serve": Role("proxy"),
    "harness.reference.worker": Role("rank0", ("worker",)),
    "harness.reference.leader": Role("rank0", ("leader", "worker")),
    "harness.reference.ranks.rank": Role("rank"),
    "harness.reference.frontend.process": Role("frontend"),
    "harness.reference.postproc.process": Role("postproc"),
    "mpi4py.futures": Role("mpi_worker", ("worker",)),
    "mpi4py.futures.server": Role("mpi_worker", ("worker",)),
    "tensorrt_llm.llmapi.mgmn_leader_node": Role("leader"),
    "tensorrt_llm.llmapi.mgmn_worker_node": Role("mpi_worker", ("worker",)),
    "tensorrt_llm.commands.serve": Role("proxy"),
    "vllm.entrypoints.openai.api_server": Role("APIServer"),
    "vllm.entrypoints.cli.main": Role("APIServer"),
    "sglang.launch_server": Role("tokenizer_manager", ("http_server",)),
}
_SCRIPTS: Mapping[str, Role] = {
    "trtllm-serve": Role("proxy"),
    "vllm": Role("APIServer"),
    "sglang": Role("tokenizer_manager", ("http_server",)),
    "mgmn_leader_node.py": Role("leader"),
    "mgmn_worker_node.py": Role("mpi_worker", ("worker",)),
}
_NUMBERED = frozenset({"rank", "frontend", "postproc"})
_OF_MPI = frozenset({"mpi_worker", "leader"})


def role_of(process: Process) -> Role:
    """Tell a process's role; any name is given to one that is not known."""
    words = process.command
    if not words:
        return Role(process.comm)
    if len(words) == 1 and (match := _TITLE.match(words[0])):
        return Role(match["name"], (words[0],))
    kind, program, rest = _program(words)
    if kind == "code":
        known = next((role for start, role in _CODE.items() if program.startswith(start)), "-c")
        return Role(known)
    name = PurePath(program).name if kind == "script" else program
    role = (_MODULES if kind == "module" else _SCRIPTS).get(name)
    if role is None:
        if name == "loadgen" and rest[:1] == ("serve",):
            return Role("proxy")
        return Role(name[:_LONGEST])
    return _refined(role, process.pid, name, rest)


def _refined(role: Role, pid: int, program: str, rest: Sequence[str]) -> Role:
    """Add what only the rest of the command line, or the environment, tells."""
    if role.name in _NUMBERED:
        return Role(role.name + rest[0]) if rest and rest[0].isdigit() else role
    if role.name in _OF_MPI:
        rank = next(iter(variables(pid, _RANKS).values()), None)
        return role if rank is None else Role(f"rank{rank}", (role.name, *role.also))
    if role.name == "proxy" and "disaggregated" in rest[:1]:
        return Role("orchestrator")
    if role.name == "APIServer" and _servers(rest) > 1:
        return Role(f"{program} launcher")  # its API servers are processes of their own, with titles
    return role


def _servers(rest: Sequence[str]) -> int:
    for place, word in enumerate(rest):
        option, _, value = word.partition("=")
        if option in ("--api-server-count", "--api_server_count", "-asc"):
            value = value or (rest[place + 1] if place + 1 < len(rest) else "")
            return int(value) if value.isdigit() else 1
    return 1


def _program(words: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Take a command apart: (`module`, `code` or `script`; which; its own words)."""
    if not _INTERPRETER.match(PurePath(words[0]).name):
        return "script", words[0], tuple(words[1:])
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        for letter, kind in (("m", "module"), ("c", "code")):
            if re.fullmatch(rf"-[a-zA-Z]*{letter}", word) and at + 1 < len(words):
                return kind, words[at + 1], tuple(words[at + 2 :])
        at += 2 if word in _TAKES_VALUE else 1
    return ("script", words[at], tuple(words[at + 1 :])) if at < len(words) else ("script", words[0], ())


class RoleChoice:
    """Which processes are wanted: each text is a name or a regular expression of a whole name, in any case.

    With no text all are. A name without its number (`rank`, `Worker`) stands for all of them. Raises UsageError for a
    text that is no expression.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        try:
            self._patterns = [re.compile(text, re.IGNORECASE) for text in texts]
        except re.error as error:
            raise UsageError(f"--role {error.pattern!r} is neither a name nor a regular expression: {error}") from error

    def wants(self, role: Role) -> bool:
        if not self._patterns:
            return True
        return any(pattern.fullmatch(name) for pattern in self._patterns for name in role.names)
