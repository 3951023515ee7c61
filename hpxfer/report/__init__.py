"""The report of one or several results folders: decided as data, written as HTML, Markdown and JSON."""

from hpxfer.report.contents import Report, Source, make_report
from hpxfer.report.html import to_html
from hpxfer.report.markdown import to_markdown

__all__ = ["Report", "Source", "make_report", "to_html", "to_markdown"]
