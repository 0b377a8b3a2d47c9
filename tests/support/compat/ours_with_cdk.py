"""Our reader in an environment with airbyte-cdk, as users of connectors' own classes have it.

Each line of input, `{manifest, config, stream, state, components}`, produces one line of output,
both JSON. The reference's packages are last on the path, so that only packages that ours lacks are
taken from them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from support.compat import ours


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Read with our reader; return its outcome or its error."""
    reported = [question[name] for name in ("manifest", "config", "stream", "state", "components")]
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            found = ours.read_all(*reported)
    except Exception as error:  # noqa: BLE001 - reported to the tests
        return {"broken": repr(error)}
    if written.getvalue():
        return {"broken": f"it wrote: {written.getvalue()[:200]}"}
    failure = found["failure"]
    told_failure = failure and {"kind": "SourceError", "message": failure}
    return {**found, "failure": told_failure, "log": []}


def main() -> None:
    sys.path.append(sys.argv[1])
    sys.stdout.write(json.dumps({"ready": sys.executable}) + "\n")
    sys.stdout.flush()
    out = sys.stdout
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
