"""PyIceberg's access to Azure with Arrow, which is installed in any case.

PyIceberg passes the part of a location before its path to Arrow as the folder. For Azure that is
`container@account.dfs.core.windows.net`, where Arrow expects the container alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT

if TYPE_CHECKING:
    from pyiceberg.typedef import Properties


class AzureFileIO(PyArrowFileIO):
    """A FileIO for locations such as `abfss://container@account.dfs.core.windows.net/path`."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return the scheme, the container and its host, and the path that begins with it."""
        scheme, host, path = PyArrowFileIO.parse_location(location, properties)
        container, at, _ = host.partition("@")
        return scheme, host, container + path.removeprefix(host) if at else path
