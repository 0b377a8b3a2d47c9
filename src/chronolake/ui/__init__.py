"""The web UI: a lake's tables, timelines and runs in a browser, read-only.

| module | |
|---|---|
| `server` | address and signals, routes, error pages, limit of concurrent pages |
| `security` | access control: hosts, token, methods, headers |
| `rendering` | templates, and the display of values |
| `links` | building and parsing of URLs |
| `site` | access of all pages to the lake, with caches |
| `pages/` | one module per page: its routes, and the context of its templates |

Everything is read with PyIceberg, PyArrow and the operational store; nothing here imports Spark.
"""

from chronolake.ui.server import Address, UiOptions, serve

__all__ = ["Address", "UiOptions", "serve"]
