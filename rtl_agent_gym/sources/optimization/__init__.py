"""Optimisation problems: a correct but wasteful design must be made smaller or faster."""
