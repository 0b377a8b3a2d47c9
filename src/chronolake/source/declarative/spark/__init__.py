"""Slices read by Spark's tasks: what the driver gives them, and what they give back."""
