"""The environment of ``CVDPSingleTurn-v0``."""

from .gym_env import CVDPSingleTurnEnv

__all__ = ["CVDPSingleTurnEnv"]
