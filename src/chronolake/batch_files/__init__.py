"""Batch files to change sets: decryption, decompression and parsing in Spark's executors.

`read` returns the lazy DataFrame of a request's files, `error_of` the typed error inside a Spark
failure; `chronolake.parsing` parses the texts of cells. This package writes no decrypted data to
disk, and its memory is bounded for files of any size: one row may have 64 MiB, and a Parquet file
that is encrypted or compressed 128 MiB.
"""

from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.batch_files.task_packing import copy_for_tasks, read, size_of
from chronolake.executor_errors import error_of

__all__ = ["BatchFile", "FileForm", "copy_for_tasks", "error_of", "read", "size_of"]
