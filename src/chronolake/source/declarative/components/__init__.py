"""The connector's own Python classes: where they are, how they are made and called."""
