"""What a lake is made of: chronolake.yml, environment variables and flags, in rising order.

```yaml
lake:
  catalog:
    uri: postgresql://lake:${LAKE_PASSWORD}@db.internal/lake   # default: DIR/catalog.db (SQLite)
  warehouse: s3://bucket/lake                                  # default: DIR
  spark:
    master: local[4]
    conf: {spark.driver.memory: 4g}
  maintenance:
    small_files: 32
```

Each key that holds one value has an environment variable: `lake.spark.master` is
`CHRONOLAKE_SPARK_MASTER`. `${NAME}` in the file stands for the environment variable NAME, `$${`
for a plain `${`. Values that may be secret are left out of every `repr`, log line and error.
"""

from chronolake.config.loading import FILE_NAME, keys, load, variable_of
from chronolake.config.sections import (
    CatalogConfig,
    CatalogKind,
    FileConfig,
    LakeConfig,
    MaintenanceConfig,
    SparkConfig,
)

__all__ = [
    "FILE_NAME",
    "CatalogConfig",
    "CatalogKind",
    "FileConfig",
    "LakeConfig",
    "MaintenanceConfig",
    "SparkConfig",
    "keys",
    "load",
    "variable_of",
]
