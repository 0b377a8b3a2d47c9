"""Failpoints: named points in the write path where a test can stop the process.

`reach("staged.after-delete")` does nothing unless the environment variable `CHRONOLAKE_FAILPOINT`
names it: `staged.after-delete=kill` ends the process with SIGKILL there, `=raise` raises, `=pause`
waits as long as the file named by `CHRONOLAKE_FAILPOINT_FILE` exists. With a number after the
action (`=kill:3`), it applies only the third time that the point is reached.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from chronolake import env
from chronolake.errors import ChronolakeError

#: Every name that `reach` is called with; a crash test covers all of them.
FAILPOINTS: Final = (
    "create.committed",
    "write.planned",
    "staged.deleted",
    "staged.appended",
    "publish.before-commit",
    "publish.after-commit",
    "rewrite.written",
    "rewrite.before-commit",
    "rewrite.after-commit",
    "sync.surveyed",
    "sync.table-ready",
    "switch.requested",
    "switch.begun",
    "switch.done",
    "switch.answered",
    "land.staged",
    "land.file-published",
    "land.file-replaced",
    "land.step-done",
    "land.done",
    "land.checkpointed",
    "read.slice-done",
    "read.slice-noted",
    "read.census-taken",
    "read.missed-landed",
    "copy.planned",
    "copy.staged",
    "copy.landed",
    "read.log-batch",
    "adopt.table-written",
    "adopt.before-commit",
    "adopt.after-commit",
    "target.planned",
    "target.written",
    "target.step-stored",
    "target.altered",
    "target.before-commit",
    "target.before-swap",
    "target.after-swap",
    "target.after-commit",
)

_reached: Counter[str] = Counter()
_lock = threading.Lock()


class FailpointError(ChronolakeError):
    """A failpoint that is set to `raise` was reached."""


def reach(name: str) -> None:
    """Run the configured action if the failpoint `name` is active.

    Raises:
        FailpointError: the failpoint is set to `raise`.
        ValueError: `name` is not in `FAILPOINTS`, or the configured action is unknown.
    """
    if name not in FAILPOINTS:
        raise ValueError(f"{name} is not a failpoint")
    setting = os.environ.get(env.FAILPOINT, "")
    if not setting.startswith(f"{name}="):
        return
    action, _, nth = setting.partition("=")[2].partition(":")
    with _lock:
        _reached[name] += 1
        due = not nth or _reached[name] == int(nth)
    if not due:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise FailpointError(f"The failpoint {name} was reached.")
    elif action == "pause":
        paused = Path(os.environ[env.FAILPOINT_FILE])
        paused.with_suffix(".reached").touch()
        while paused.exists():
            time.sleep(0.02)
    else:
        raise ValueError(f"{action} is not an action of a failpoint")
