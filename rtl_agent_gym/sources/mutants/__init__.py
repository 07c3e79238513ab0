"""Mutants: right designs with one small change each, graded, and the debugging problems made of them."""
