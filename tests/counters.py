"""What this process has counted for Prometheus so far."""

from __future__ import annotations

from prometheus_client import REGISTRY


def counted(name: str, **labels: str) -> float:
    """A counter of the package, such as ``machine_faults``."""
    return REGISTRY.get_sample_value(f"rtl_gym_{name}_total", labels) or 0.0
