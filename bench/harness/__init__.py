"""Shared by the measurements: data, batch files, the alternatives, clocks and tables of results.

Every file in `bench/` states a claim, and measures ours and an alternative in one run.
"""
