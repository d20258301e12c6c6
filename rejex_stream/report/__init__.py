"""One HTML file about what a run judged, for anybody's data.

In: a :class:`~rejex_stream.report.run.Run`, its readings with their verdicts, read back from the
files of a pipeline or kept by ``rejex-stream score``. Out: a page that asks nobody for anything.
Open `run` first, then `findings` (what the run says) and `page` (how it is shown).
"""

from rejex_stream.report.findings import Findings, find
from rejex_stream.report.page import write_report
from rejex_stream.report.run import Channel, Fault, Run, read_run

__all__ = ["Channel", "Fault", "Findings", "Run", "find", "read_run", "write_report"]
