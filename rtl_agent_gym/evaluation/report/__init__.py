"""A report on one run, or on several compared with each other."""

from .page import write_report
from .run import side_by_side

__all__ = ["side_by_side", "write_report"]
