"""An open tester for destinations of the Partner SDK, version 2: `chronolake drive`.

It reads scenarios in the format of the vendor's tester, makes the batch files, drives any
destination over gRPC, checks every answer and every described table against a model, and can write
the expected contents. `run` plays scenarios; the parts are modules of their own:

| module | what it knows |
|---|---|
| `scenario`, `migration` | the format of the scenarios |
| `definition`, `values`, `instants` | columns, values and times |
| `rows`, `history`, `files` | the rows of batch files, and the files |
| `model`, `evolution` | the expected contents, in plain Python |
| `wire`, `destination` | messages and calls |
| `conversation`, `session`, `migrating`, `checks` | the order of the calls, and what is checked |
| `options`, `report` | what a run is asked to do, and what it tells |
"""

from chronolake.drive.options import DriveOptions
from chronolake.drive.play import run

__all__ = ["DriveOptions", "run"]
