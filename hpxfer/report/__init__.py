"""The report on one or several results folders: decided as data, then written as HTML and JSON."""

from hpxfer.report.contents import Report, Source, make_report
from hpxfer.report.html import to_html
from hpxfer.report.write import Written, write_report

__all__ = ["Report", "Source", "Written", "make_report", "to_html", "write_report"]
