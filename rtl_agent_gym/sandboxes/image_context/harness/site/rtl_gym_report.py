"""A pytest plugin: which tests there are and how each ended, told to the supervisor of the grading.

The supervisor names it in ``PYTEST_PLUGINS``. It changes nothing about the run but the seed of `random`: tests that
draw their parameters draw the same ones each time, so that equal designs get equal scores.
"""

import os
import random

from rtl_gym_witness import tell


def pytest_configure(config):
    """Before anything is collected."""
    seed = os.environ.get("RTL_GYM_SEED")
    if seed:
        random.seed(int(seed))


def pytest_collection_finish(session):
    """After everything has been collected."""
    tell(source="pytest", items=[item.nodeid for item in session.items])


def pytest_runtest_logreport(report):
    """After each phase (setup, call, teardown) of each test."""
    tell(source="pytest", item=report.nodeid, when=report.when, outcome=report.outcome)
