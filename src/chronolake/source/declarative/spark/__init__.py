"""Reading slices in Spark tasks: assignment of slices, shared state, and results."""
