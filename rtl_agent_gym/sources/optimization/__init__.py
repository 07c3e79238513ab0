"""Optimisation problems: a right and wasteful design is given, and is to be made smaller or faster."""
