"""A report of one run, or of several against each other."""

from .page import write_report
from .run import side_by_side

__all__ = ["side_by_side", "write_report"]
