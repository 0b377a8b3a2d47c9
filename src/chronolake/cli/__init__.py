"""The command line: `chronolake COMMAND …`; each command calls one function of a package below.

| module | commands |
|---|---|
| `app` | the program itself, its options, `version`, and how errors are shown |
| `tables` | `tables`, `history`, `usage`: no JVM, so they respond immediately; `diff`: Spark |
| `maintenance` | `query`, `verify`, `maintain`, `view`: Spark |
| `mode` | `mode`: Spark |
| `adopt` | `adopt`: no JVM |
| `serve` | `serve`: Spark; `ui`: no JVM |
| `tester` | `test-destination` |
| `init` | `init`, `schema`: no JVM |
| `project` | `status`, `runs`, `state` |
| `check` | `check`, `discover`, `read` |
| `up` | `up`: the long-running process of a project |
| `engine` | `engine status`, `engine stop` |
| `resync` | `resync` of tables without a pipeline: Spark |
| `pipelines` | `sync`, `resync`, `backfill`, `rebuild`: Spark |
| `import_history` | `import-history`: Spark |
"""

from chronolake.cli import (
    adopt,
    check,
    engine,
    import_history,
    init,
    maintenance,
    mode,
    pipelines,
    project,
    publish,
    serve,
    tables,
    tester,
    up,
)
from chronolake.cli.app import app, main

__all__ = [
    "adopt",
    "app",
    "check",
    "engine",
    "import_history",
    "init",
    "main",
    "maintenance",
    "mode",
    "pipelines",
    "project",
    "publish",
    "serve",
    "tables",
    "tester",
    "up",
]
