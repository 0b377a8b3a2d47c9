"""What can be read: each source in a room of its own."""
