"""An open tester for destinations of the Partner SDK, version 2: `chronolake test-destination`.

The tester reads scenarios in the format of the vendor's tester, writes the batch files and calls
any destination over gRPC. It checks every response and every described table against a model, and
can write the expected contents. `run` executes scenarios. The modules are:

| module | content |
|---|---|
| `scenario` | the format of the scenarios |
| `connector_types` | scenarios of connectors, in `scenarios/` |
| `definition`, `values` | columns, values and times |
| `rows`, `files` | the rows of batch files, and the files |
| `model`, `migration_run` | the expected contents, in plain Python |
| `client` | messages and calls |
| `conversation`, `runner`, `migration_run` | the order of the calls, and the checks |
| `options`, `conversation` | the options of a run, and its report |
"""

from chronolake.tester.options import RunOptions
from chronolake.tester.runner import run

__all__ = ["RunOptions", "run"]
