"""The program: runs a command in the engine of its lake if there is one, and here otherwise."""

from __future__ import annotations

import sys

from chronolake.engine import client


def main() -> None:
    """Run the command line and exit the process with the command's code."""
    words = sys.argv[1:]
    code = client.delegate(words)
    if code is not None:
        sys.exit(code)
    # Not before: it takes longer than a command in an engine.
    from chronolake.cli import main as run  # noqa: PLC0415
    from chronolake.engine import background  # noqa: PLC0415

    try:
        run(words)
    finally:
        background.leave_running(words)


if __name__ == "__main__":
    main()
