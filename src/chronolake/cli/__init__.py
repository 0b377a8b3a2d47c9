"""The command line: `chronolake COMMAND …`; each command calls one function of a room below.

| module | commands |
|---|---|
| `app` | the program itself, its options, `version`, and how errors are shown |
| `looking` | `tables`, `history`, `usage`: no JVM, so they answer at once |
| `working` | `query`, `verify`, `maintain`, `view`: Spark |
| `switching` | `mode`: Spark |
| `comparing` | `diff`: Spark |
| `serving` | `serve` |
| `viewing` | `ui`: no JVM |
| `driving` | `drive` |
| `projecting` | `init`, `schema`, `status`, `runs`, `state` |
| `checking` | `check`, `discover` |
| `reading` | `read` |
| `piping` | `sync`, `resync`, `rebuild`: Spark |
"""

from chronolake.cli import (
    checking,
    comparing,
    driving,
    looking,
    piping,
    projecting,
    reading,
    serving,
    switching,
    viewing,
    working,
)
from chronolake.cli.app import app, main

__all__ = [
    "app",
    "checking",
    "comparing",
    "driving",
    "looking",
    "main",
    "piping",
    "projecting",
    "reading",
    "serving",
    "switching",
    "viewing",
    "working",
]
