"""Targets of tests: real databases, and comparisons of them with a lake."""
