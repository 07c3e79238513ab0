"""What a row needs to be scored: a reference, a judge model, or the image of a commercial simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rtl_agent_gym.problems.categories import category_name
from rtl_agent_gym.problems.compose import COMPOSE_FILE, external_networks, find_templates, is_templated
from rtl_agent_gym.problems.model import COMPARED, JUDGED, Problem

EDA_IMAGE, LICENCE_NETWORK = "__VERIF_EDA_IMAGE__", "__LICENSE_NETWORK__"
"""The templates that stand for a commercial simulator's image, and for the network of its licence server."""


def without_harness(category: int, reference: str) -> str | None:
    """Why a row without hidden tests cannot be scored by anything, or None: its answer is text."""
    if category not in (*COMPARED, *JUDGED):
        return "the row has no harness, so nothing can score it"
    if not reference.strip():
        return f"answers of category {category_name(category)} are text, and the row has no reference to compare with"
    if category in COMPARED and len(re.sub(r"[^\w\s]", "", reference).split()) < 2:
        return "its reference has fewer than two words, so that no pairs of words can be compared"
    return None


def commercial_need(harness: Mapping[str, str]) -> str | None:
    """What a harness needs that no open tool has, or None."""
    if COMPOSE_FILE not in harness:
        return None
    words = set[str]().union(*(find_templates(text) for name, text in harness.items() if is_templated(name)))
    if EDA_IMAGE in words:
        return f"its harness needs a commercial simulator (the image {EDA_IMAGE})"
    if LICENCE_NETWORK in words:
        return f"its harness needs the licence server of a commercial simulator (the network {LICENCE_NETWORK})"
    networks = external_networks(harness[COMPOSE_FILE])
    if networks:
        return f"its harness needs the external network {networks[0]}, such as a commercial simulator's licence server"
    return None


def missing_here(problem: Problem) -> str | None:
    """Why a problem cannot be scored without further options (a judge, an image), or at all; None if it can."""
    if problem.unscorable is not None:
        return problem.unscorable
    if problem.asks_text:
        if problem.category in JUDGED:
            name = category_name(problem.category)
            return f"answers of category {name} are text, rated by a judge model; give one (--judge chat:MODEL)"
        return None
    need = commercial_need(problem.harness)
    return need and f"{need}; give yours, if you have one (--harness-image VERIF_EDA_IMAGE=IMAGE)"
