"""The two readers of a stream: the reference in its own environment, and ours.

`PYTHONPATH=tests python -m support.compat.readers [WORD ...]` reads all cases (or those with a
word in their name) with the reference alone, and prints each outcome and how it differs from the
expected one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.compat.case import HANDED, Case, cases
from support.compat.outcome import Outcome, steady, unmet
from support.compat.server import Server, serve

ROOT = Path(__file__).parents[3]
#: The reference's Python; it has airbyte-cdk, which ours never installs.
PYTHON = Path(os.environ.get("CHRONOLAKE_COMPAT_PYTHON", ".venv-compat/bin/python"))


def reference_python() -> Path | None:
    """Return the path of the reference's Python; None if `make test-compat` has not created it."""
    python = PYTHON if PYTHON.is_absolute() else ROOT / PYTHON
    return python if python.exists() else None


class Reference:
    """airbyte-cdk in its own process, which reads one stream after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(self, **question: Any) -> dict[str, Any]:
        """Read `manifest`, `config`, `stream` and `state` with the reference; return its answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        if "broken" in answer:
            raise RuntimeError(f"the reference broke: {answer['broken']}")
        return answer

    def outcome(
        self,
        server: Server,
        api: list[dict[str, Any]],
        *,
        manifest: Mapping[str, Any],
        config: Mapping[str, Any],
        stream: str,
        state: Any,
        partition_limit: int | None = None,
        components: str | None = None,
    ) -> Outcome:
        """Read a stream with the reference, from an API programmed for it."""
        programmed = server.program(api)
        answer = self.read(
            manifest=manifest,
            config=config,
            stream=stream,
            state=state,
            partition_limit=partition_limit,
            components=components,
        )
        failure = answer["failure"]
        return Outcome(
            records=answer["records"],
            state=answer["state"],
            failure=failure and f"{failure['kind']}: {failure['message']}",
            waits=answer["waits"],
            requests=list(programmed.asked),
            log=answer["log"],
        )


@contextmanager
def reference(python: Path) -> Iterator[Reference]:
    """Start the reference; its process ends with the block."""
    script = Path(__file__).with_name("reference.py")
    with _answering([python, "-I", script]) as ready:
        yield ready


@contextmanager
def ours_with_cdk(python: Path) -> Iterator[Reference]:
    """Start our reader in a process that also has airbyte-cdk; it ends with the block."""
    script = Path(__file__).with_name("ours_with_cdk.py")
    packages = next(python.parent.parent.glob("lib/python3.*/site-packages"))
    with _answering([sys.executable, script, packages]) as ready:
        yield ready


@contextmanager
def _answering(command: list[str | Path]) -> Iterator[Reference]:
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = process.stdout.readline()
        if "ready" not in ready:
            raise RuntimeError(f"the reader does not start: {command}")
        try:
            yield Reference(process)
        finally:
            process.stdin.close()
            process.wait(10)


def readings(case: Case, reader: Reference, server: Server) -> Iterator[tuple[Any, Outcome]]:
    """Yield the reference's outcome of each sync of a case, with the state that it began from."""
    last: Any = None
    for sync in case.syncs:
        state = last if sync.state == HANDED else sync.state
        outcome = reader.outcome(
            server,
            sync.api,
            manifest=case.manifest,
            config=case.configured(server.address),
            stream=case.stream,
            state=state,
            partition_limit=case.partition_limit,
            components=case.components,
        )
        last = steady(outcome.state)
        yield state, outcome


def show(words: list[str]) -> int:
    """Print the reference's outcomes of the cases; return how many are not as expected."""
    python = reference_python()
    if python is None:
        print(f"no reference at {PYTHON}")  # noqa: T201 - a script's answer
        return 1
    wrong = 0
    with serve() as server, reference(python) as reader:
        for case in cases():
            if words and not any(word in case.name for word in words):
                continue
            for number, (sync, (state, outcome)) in enumerate(
                zip(case.syncs, readings(case, reader, server), strict=True)
            ):
                missed = unmet(outcome, sync.expect)
                wrong += bool(missed)
                lines = [f"{'BAD' if missed else 'ok '} {case.name} #{number}"]
                lines += [f"      {line}" for line in missed]
                if words or missed:
                    lines += [f"    from {json.dumps(state)}"]
                    lines += [f"    {request.text}" for request in outcome.requests]
                    lines += [f"    {json.dumps(record)}" for record in outcome.records]
                    lines += [f"    state {json.dumps(outcome.state)}"]
                    lines += [f"    waits {outcome.waits} failure {outcome.failure!r}"]
                    lines += [f"    log {line[:200]}" for line in outcome.log]
                print("\n".join(lines))  # noqa: T201 - a script's answer
    return wrong


if __name__ == "__main__":
    sys.exit(min(show(sys.argv[1:]), 1))
