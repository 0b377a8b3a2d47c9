"""Pipelines: what is brought from a source into tables, run by run.

A run takes the pipeline's lease (`lease`), and for each of its streams (`streams`) lands what its
source (`chronolake.source`) has by now, where that keeps no lake of its own (`landing`). Then it
applies what was landed since the table's watermark (`apply`, with `table_writer` and `rebuild`;
`purge` takes what was purged out of our own files). The watermark is published with the rows, so
that a run that dies continues where its tables are. `store` remembers what became of runs (`sync`,
`stream_run`), as `events` tells it, `token_store` what sources have to know again, and `state`
shows and moves positions.

Who looks at runs (`run_history`) and at how fresh tables are (`freshness`) reads the store through
`run_history`, and never writes.
"""
