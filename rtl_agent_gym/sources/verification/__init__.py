"""Verification problems: given a specification and a correct design, write a bench that finds bugs."""
