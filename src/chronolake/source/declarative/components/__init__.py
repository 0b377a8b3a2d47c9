"""Custom Python classes of a connector: finding, instantiating and calling them."""
