"""What is shown: tables, figures and one self-contained page, made from run folders alone."""

from orbitset.report.page import write_report
from orbitset.report.tables import text_table

__all__ = ["text_table", "write_report"]
