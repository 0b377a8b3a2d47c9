"""The gRPC destination: the Partner SDK's calls on the tables of a lake."""

from chronolake.server.listener import LOOPBACK, ServeOptions
from chronolake.server.process import Server, serve

__all__ = ["LOOPBACK", "ServeOptions", "Server", "serve"]
