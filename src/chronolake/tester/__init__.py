"""An open tester for destinations of the Partner SDK, version 2: `chronolake test-destination`.

It reads scenarios in the format of the vendor's tester, makes the batch files, drives any
destination over gRPC, checks every answer and every described table against a model, and can write
the expected contents. `run` plays scenarios; the parts are modules of their own:

| module | what it knows |
|---|---|
| `scenario` | the format of the scenarios |
| `definition`, `values` | columns, values and times |
| `rows`, `files` | the rows of batch files, and the files |
| `model`, `migration_run` | the expected contents, in plain Python |
| `client` | messages and calls |
| `conversation`, `runner`, `migration_run` | the order of the calls, and what is checked |
| `options`, `conversation` | what a run is asked to do, and what it tells |
"""

from chronolake.tester.options import DriveOptions
from chronolake.tester.runner import run

__all__ = ["DriveOptions", "run"]
