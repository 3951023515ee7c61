"""The live page as HTML: the empty page with its style, its script and its policy, and the part about the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

import hpxfer
from hpxfer.live.tables import shapes_table, stacks_table
from hpxfer.progress.table import status_text
from hpxfer.progress.watch import RunView
from hpxfer.report.html import page_environment, script_source


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """What the part about the run shows: a view, why there is no newer one, and how old the report below is."""

    view: RunView | None
    problem: str = ""
    report: str = ""


@dataclass(frozen=True, kw_only=True)
class LivePage:
    """The page as a browser first gets it, and its policy: it may ask this server and nobody else."""

    html: str
    policy: str


def live_page(where: str) -> LivePage:
    """Return the page on a results folder. Its script fetches all that it shows."""
    environment = _environment()
    style = "".join(environment.get_template(f"{name}.css").render() for name in ("report", "live"))
    scripts = [environment.get_template(f"{name}.js").render() for name in ("report", "live")]
    html = environment.get_template("live.html").render(
        where=where, style=Markup(style), scripts=[Markup(script) for script in scripts], version=hpxfer.__version__
    )
    rules = {
        "default-src": "'none'",
        "style-src": script_source(style),
        "script-src": " ".join(map(script_source, scripts)),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return LivePage(html=html, policy="; ".join(f"{name} {source}" for name, source in rules.items()))


def run_html(part: RunPart) -> str:
    """Return the part about the run: its state, how far it is, its shapes, its running stacks and its errors."""
    view, status = part.view, None if part.view is None else part.view.run_status
    is_over = view is not None and view.is_over
    if status is not None and is_over:
        # Nothing goes on. A driver that was killed had no time to say so.
        status = replace(status, eta_s=None, shapes=tuple(replace(shape, running=0) for shape in status.shapes))
    title = "Stacks at the last report of the driver" if is_over else "Running stacks"
    template = _environment().get_template("run.html")
    return template.render(
        part=part,
        view=view,
        status=status,
        line="" if status is None else status_text(status),
        shapes=None if status is None else shapes_table(status.shapes),
        stacks=None if status is None or not status.running else stacks_table(status.running, title),
    )


@cache
def _environment() -> Environment:
    """Return the templates of the report, and those of this page beside them."""
    reports = page_environment()
    assert reports.loader is not None
    return reports.overlay(loader=ChoiceLoader([PackageLoader("hpxfer.live"), reports.loader]))
