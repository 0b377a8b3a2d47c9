"""The process that Spark forks its Python workers from (`spark.python.daemon.module`).

It is Spark's own daemon, prepared for Chronolake's tasks:

* Its workers share the modules that it has imported.
* It imports PySpark from the installed package, not from the archives that Spark prepends to the
  path. At the start of every task a worker invalidates its import caches, and Python reads the
  directory of every such archive again, which takes a tenth of a second of each task.
* Data that the JVM sends is acknowledged immediately (`chronolake.py4j_nodelay`).
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chronolake.py4j_nodelay import wrap_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Modules with the functions that tasks run.
_PRELOADED: Final = (
    "chronolake.batch_files.task_packing",
    "chronolake.core.upsert_fold",
    "chronolake.core.scd2_fold",
)


def installed_archives(path: Sequence[str]) -> set[str]:
    """Return the archives on an import path that belong to the PySpark that is installed on it.

    Archives of another PySpark are not returned: a cluster may run one that a machine has not
    installed.
    """
    folders = [entry for entry in path if not Path(entry).is_file()]
    found = PathFinder.find_spec("pyspark", folders)
    if found is None or found.origin is None:
        return set()
    installed = Path(found.origin).parent
    return {entry for entry in path if Path(entry).is_relative_to(installed)}


def main() -> None:
    """Serve Spark's requests for workers until it closes standard input."""
    archives = installed_archives(sys.path)
    sys.path[:] = [entry for entry in sys.path if entry not in archives]
    sys.path_importer_cache.clear()
    for name in _PRELOADED:
        import_module(name)
    # Workers collect garbage after every task; current objects are excluded from it.
    gc.freeze()
    daemon: Any = import_module("pyspark.daemon")
    daemon.worker_main = wrap_worker(daemon.worker_main)
    daemon.manager()


if __name__ == "__main__":
    main()
