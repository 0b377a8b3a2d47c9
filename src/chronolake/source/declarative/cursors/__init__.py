"""How far a stream is: intervals of time, slices, state."""
