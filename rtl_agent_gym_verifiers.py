"""The environment by the name that verifiers takes: ``vf-eval rtl_agent_gym_verifiers``."""

from rtl_agent_gym.integrations.verifiers import CVDPEnvironment, CVDPHarness, CVDPTaskset

__all__ = ["CVDPEnvironment", "CVDPHarness", "CVDPTaskset"]
