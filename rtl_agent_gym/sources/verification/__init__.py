"""Verification problems: a specification and a right design are given, and a bench is to be written that finds bugs."""
