"""One HTML file about what a run judged, for anybody's data.

In: a run, its readings with their verdicts, read back from the files of a pipeline. Out: a page
that asks nobody for anything. Open `judged_run` first, then `page` (how it is shown).
"""

from rejex_stream.report.judged_run import Channel, Fault, Findings, Run, analyse_run, read_run
from rejex_stream.report.page import write_report

__all__ = ["Channel", "Fault", "Findings", "Run", "analyse_run", "read_run", "write_report"]
