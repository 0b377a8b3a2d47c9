"""Batch files to change sets: decrypt, decompress and parse in Spark's executors.

`read` gives the lazy DataFrame of a request's files, `error_of` the typed error inside a Spark
failure; `chronolake.parsing` knows what the texts of cells mean. Nothing decrypted is written to
disk by this room, and memory is bounded whatever a file's size: one row may have 64 MiB, a Parquet
file that is encrypted or compressed 128 MiB.
"""

from chronolake.batch_files.executor_errors import error_of
from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.batch_files.task_packing import read, size_of

__all__ = ["BatchFile", "FileForm", "error_of", "read", "size_of"]
