"""One self-contained HTML page of a sweep: no network, no library, everything from servers and files escaped.

The page forbids itself all network access by its Content-Security-Policy, and runs one script, named by its hash.
"""

import base64
import hashlib
import os
import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from analysis.report.view import ReportView, make_view
from analysis.scaling.study import Scaling, study_scaling
from analysis.study import Study, study_sweep
from contracts.folder import SweepFolder

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("sort.js", "flame.js")


def write_report(path: Path, out: Path | None = None, objective: str | None = None, *, processes: int = 1) -> Path:
    """Write a sweep's report (by default DIR/report.html), atomically, and say where. Any state of a sweep will do."""
    study = study_sweep(path, objective, processes=processes)
    return write_page(study, study_scaling(study), out)


def write_page(study: Study, scaling: Scaling, out: Path | None = None) -> Path:
    """Write the report of a sweep that was worked through already."""
    page = render(make_view(study, scaling))
    target = SweepFolder(study.path).report if out is None else Path(out)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def render(view: ReportView) -> str:
    """Fill the template; only our own style, script and plots go in unescaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    script = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        view=view,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=f"sha256-{digest}",
        csv_url=f"data:text/csv;base64,{base64.b64encode(view.cells.csv.encode()).decode()}",
    )


def breakable(text: str) -> Markup:
    """Escape a name and let the browser break it after _, =, / and comma rather than anywhere."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[_=/,])", text))
