"""What a sweep ran on, what was not the same in all its cells, and what a repetition needs: text for the report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from analysis.plan import flatten
from analysis.study import Study
from analysis.text import plural


@dataclass(frozen=True, slots=True)
class Facts:
    """One table of the environment."""

    title: str
    rows: tuple[tuple[str, str], ...]


def _server_settings(study: Study) -> Mapping[str, str]:
    """Take what the server of the first cell said of itself, where sweep.json has no word on it."""
    told = next((cell.tables.info.server for cell in study.cells if cell.tables.info.server), {})
    return flatten(told.get("settings", told))


def _load_machines(study: Study) -> Mapping[str, str]:
    """Name the machines of the first cell whose load ran elsewhere, and say how their clocks stood to this one's."""
    tables = next((cell.tables for cell in study.cells if cell.tables.info.load_machines), None)
    if tables is None:
        return {}
    named = {}
    for process, host in tables.info.load_machines.items():
        fit = tables.clocks.fits.get(int(process.removeprefix("load") or 0))
        clock = "clock not known" if fit is None else f"clock {fit.offset_ms:+.3f} ms, to within {fit.error_ms:.3f} ms"
        named[process] = f"{host}, {clock}"
    return named


def made_with(study: Study) -> str:
    """Name the versions that a repetition should have: ours with its commit, and the interpreter's."""
    versions, git = study.info.versions, study.info.git
    own = f"loadgen-gil {versions['loadgen-gil']}" if "loadgen-gil" in versions else ""
    commit = f"commit {git['commit']}" if git.get("commit") else ""
    changed = "with uncommitted changes" if str(git.get("dirty", "no")) not in {"no", "False"} else ""
    interpreter = f"{versions.get('implementation', 'Python')} {versions['python']}" if "python" in versions else ""
    return ", ".join(part for part in (" ".join(filter(None, (own, commit, changed))), interpreter) if part)


def _differences(study: Study) -> Mapping[str, str]:
    """Say what was not the same in all cells: placement, and what the servers said of their settings."""
    told = [
        flatten({"placement": dict(cell.tables.info.placement), **dict(cell.tables.info.server.get("settings", {}))})
        for cell in study.cells
    ]
    found = {}
    for name in sorted({name for one in told for name in one}):
        values = Counter(one.get(name, "not told") for one in told)
        if len(values) > 1:
            found[name] = ", ".join(f"{value} ({plural(count, 'cell')})" for value, count in values.items())
    return found


def facts_of(study: Study) -> Iterable[Facts]:
    info = study.info
    placement = next((cell.tables.info.placement for cell in study.cells if cell.tables.info.placement), {})
    plan = {name: value for name, value in info.plan.items() if value != ""}
    for title, facts in (
        ("Machine", info.machine),
        ("Versions", info.versions),
        ("Plan", plan),
        ("Placement of the first cell", placement),
        ("Load machines", _load_machines(study)),
        ("Stack settings", info.stack_settings or _server_settings(study)),
        ("Differs between cells", _differences(study)),
        ("Git", info.git),
    ):
        if facts:
            yield Facts(title, tuple((str(name), str(value)) for name, value in facts.items()))
