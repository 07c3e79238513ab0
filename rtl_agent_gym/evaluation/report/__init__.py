"""A report of one run, or of several against each other."""

from .figures import side_by_side
from .page import page_path, write_report

__all__ = ["page_path", "side_by_side", "write_report"]
