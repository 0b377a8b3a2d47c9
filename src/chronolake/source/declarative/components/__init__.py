"""Custom components: instances of the connector's classes, and the objects passed to them."""
