"""Cursors: time intervals, slices and stream state."""
