"""Mutants: correct designs with one small change each, their verdicts, and the debugging problems made from them."""
