"""Environment variables that are not settings of a lake.

`chronolake.config` reads the variables of settings. It rejects every other name with the prefix
`CHRONOLAKE_`, so a variable must be in this list to work.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "CHRONOLAKE_"

#: Defaults of `--lake` and `--project`.
LAKE: Final = "CHRONOLAKE_LAKE"
PROJECT: Final = "CHRONOLAKE_PROJECT"
#: Folder of Spark's jars, and the Ivy settings for downloading them.
JARS: Final = "CHRONOLAKE_JARS"
IVY_SETTINGS: Final = "CHRONOLAKE_IVY_SETTINGS"
#: `off` to start Java without the archive of Spark's classes.
CLASS_ARCHIVE: Final = "CHRONOLAKE_CLASS_ARCHIVE"
#: `off` to run every command in its own process, and to leave no engine running; otherwise the
#: socket of the engine to use. Default: that of the lake.
ENGINE: Final = "CHRONOLAKE_ENGINE"
#: Fixed token of the web UI.
UI_TOKEN: Final = "CHRONOLAKE_UI_TOKEN"  # noqa: S105 - a name
#: Failpoint where a test stops the process, and the file that a pause waits for.
FAILPOINT: Final = "CHRONOLAKE_FAILPOINT"
FAILPOINT_FILE: Final = "CHRONOLAKE_FAILPOINT_FILE"
#: Read only by tests and benchmarks; the processes that they start inherit them.
SEED: Final = "CHRONOLAKE_SEED"
COMPAT_PYTHON: Final = "CHRONOLAKE_COMPAT_PYTHON"

KNOWN: Final = frozenset(
    {
        LAKE,
        PROJECT,
        JARS,
        IVY_SETTINGS,
        CLASS_ARCHIVE,
        ENGINE,
        UI_TOKEN,
        FAILPOINT,
        FAILPOINT_FILE,
        SEED,
        COMPAT_PYTHON,
    }
)
