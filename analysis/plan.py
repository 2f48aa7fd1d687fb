"""sweep.json as analysis reads it: only `format` and `plan.factors` are counted on, the rest is shown as found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

AS_CONFIGURED = "as configured"


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """One value for each knob, as (name, value) pairs sorted by name; hashable, so it groups cells."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, knobs: Mapping[str, Any]) -> "Setting":
        return cls(tuple(sorted((str(name), str(value)) for name, value in knobs.items())))

    @property
    def label(self) -> str:
        """`NAME=VALUE NAME=VALUE`, as one would type it after --set."""
        return " ".join(f"{name}={value}" for name, value in self.pairs) or AS_CONFIGURED

    def turned_from(self, base: "Setting") -> dict[str, tuple[str | None, str]]:
        """Give the knobs that another setting has otherwise: by name its value there (None without) and here."""
        there = dict(base.pairs)
        return {name: (there.get(name), value) for name, value in self.pairs if there.get(name) != value}

    @property
    def short(self) -> str:
        """Give the values alone: enough where the knobs' names stand beside it."""
        return ", ".join(value for _, value in self.pairs) or AS_CONFIGURED


@dataclass(frozen=True, slots=True)
class SweepInfo:
    """What sweep.json says. Sections are name -> value as text, in the file's order; empty where it says nothing."""

    factors: Mapping[str, tuple[str, ...]]
    baseline: Setting
    planned_blocks: int | None
    planned_cells: int | None
    created_at: str | None
    state: str | None
    command: tuple[str, ...]
    plan: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    git: Mapping[str, str]
    stack_settings: Mapping[str, str]
    client_trust: Mapping[str, str]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "SweepInfo":
        plan = _mapping(document.get("plan"))
        factors = {
            str(name): tuple(str(value) for value in values)
            for name, values in _mapping(plan.get("factors")).items()
            if isinstance(values, list | tuple) and values
        }
        named = {str(name): str(value) for name, value in _mapping(document.get("baseline")).items()}
        order = document.get("order")
        repeats = plan.get("repeats")
        return cls(
            factors=factors,
            baseline=Setting.of({name: named.get(name, values[0]) for name, values in factors.items()}),
            planned_blocks=repeats if isinstance(repeats, int) else None,
            planned_cells=len(order) if isinstance(order, list) else None,
            created_at=_text_or_none(document.get("created_at")),
            state=_text_or_none(document.get("state")),
            command=tuple(str(word) for word in document.get("command") or ()),
            plan=flatten(plan),
            machine=flatten(document.get("machine")),
            versions=flatten(document.get("versions")),
            git=flatten(document.get("git")),
            stack_settings=flatten(document.get("stack_settings")),
            client_trust=flatten(document.get("client_trust")),
        )

    def order_settings(self, settings: Iterable[Setting]) -> list[Setting]:
        """Put the baseline first, then the others as their values stand in the plan."""

        def rank(setting: Setting) -> tuple[object, ...]:
            places = []
            for name, value in setting.pairs:
                known = self.factors.get(name, ())
                places.append((known.index(value) if value in known else len(known), value))
            return (setting != self.baseline, places)

        return sorted(set(settings), key=rank)


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Turn nested JSON into dotted names and text, for a table of an environment that nobody has to foresee."""
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for name, inner in value.items():
            flat.update(flatten(inner, f"{prefix}.{name}" if prefix else str(name)))
        return flat
    if value is None:
        return {}
    if isinstance(value, list | tuple):
        return {prefix or "value": ", ".join(str(item) for item in value)}
    return {prefix or "value": str(value)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)
