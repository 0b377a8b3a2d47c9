"""Pipelines: copying changes from a source to tables, run by run.

A run takes the pipeline's lease (`lease`). For each of its streams (`streams`), it lands new data
of the source (`chronolake.source`), unless the source is itself a raw lake (`landing`). Then it
applies the landed files after the table's watermark (`apply`, with `table_writer` and `rebuild`;
`purge` erases purged records from Chronolake's own files). The watermark is published with the
rows, so the run after a crash continues at the state of its tables. `store` records the outcome of
runs (`sync`, `stream_run`), which `events` reports, `token_store` stores the tokens of sources, and
`state` shows and moves offsets.

The modules that report on runs (`run_history`) and on the freshness of tables (`freshness`) read
the store through `run_history` and never write.
"""
