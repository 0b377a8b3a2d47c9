"""The environment variables that are no settings of a lake, by those who read them.

Settings have theirs from `chronolake.config`. Every other name that begins with `CHRONOLAKE_` is
refused there, so a variable that is not in this list does not work.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "CHRONOLAKE_"

#: Stand for `--lake` and `--project`.
LAKE: Final = "CHRONOLAKE_LAKE"
PROJECT: Final = "CHRONOLAKE_PROJECT"
#: Where Spark's jars are kept, and the Ivy settings by which they are fetched.
JARS: Final = "CHRONOLAKE_JARS"
IVY_SETTINGS: Final = "CHRONOLAKE_IVY_SETTINGS"
#: The page's token, where it is to stay the same.
UI_TOKEN: Final = "CHRONOLAKE_UI_TOKEN"  # noqa: S105 - a name
#: Where a test stops the process.
FAILPOINT: Final = "CHRONOLAKE_FAILPOINT"
FAILPOINT_FILE: Final = "CHRONOLAKE_FAILPOINT_FILE"
#: Read by tests and benchmarks alone, which start processes that inherit them.
SEED: Final = "CHRONOLAKE_SEED"
COMPAT_PYTHON: Final = "CHRONOLAKE_COMPAT_PYTHON"

KNOWN: Final = frozenset(
    {
        LAKE,
        PROJECT,
        JARS,
        IVY_SETTINGS,
        UI_TOKEN,
        FAILPOINT,
        FAILPOINT_FILE,
        SEED,
        COMPAT_PYTHON,
    }
)
