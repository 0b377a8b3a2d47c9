"""The page: a lake's tables, timelines and runs in a browser, read-only.

| module | |
|---|---|
| `server` | listens, tells where, ends |
| `app` | which page answers which URL, and what becomes of errors |
| `security` | who may ask: hosts, token, methods, headers |
| `rendering` | templates, and how values are shown |
| `links` | URLs, and what is read from them |
| `site` | what all pages look at: the lake, and what was read of it already |
| `record` | a record's versions, page by page and as its chart draws them |
| `pages/` | a module for each page: its routes, and what its template is given |

Everything is read with PyIceberg, PyArrow and the operational store; nothing here knows Spark.
"""

from chronolake.ui.server import Address, UiOptions, serve

__all__ = ["Address", "UiOptions", "serve"]
