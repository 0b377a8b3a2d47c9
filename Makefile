# `make` without a target lists the targets. Everything is installed in .venv; nothing outside the
# project changes except the cache of Spark's jars (see CHRONOLAKE_JARS in docs/configuration.md).

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
WARM := $(VENV)/.warm
COMPAT := .venv-compat/.locked
STORE := $(VENV)/.store
SPARK40 := .venv-spark40/.locked
READERS := .venv-readers/.locked
#: Number of test processes; each runs its own Spark, in about 3 GiB.
WORKERS ?= 2
SPREAD := -n $(WORKERS) --dist worksteal
PYTEST := $(BIN)/python -m pytest $(SPREAD)
#: Tests that compare tables with a model after random or all short sequences of changes.
MODELS := tests/server/test_stories.py tests/server/test_universe.py tests/server/test_shapes.py \
  tests/server/test_real_files.py tests/lake/test_data_lake.py
#: Installs the versions of a lock file in an environment: uv is much faster than pip, but knows
#: nothing of pip's configuration, which may be the only way to the packages here.
INSTALL = install() { \
  $(BIN)/uv pip install --quiet --python "$$1/bin/python" --require-hashes -r "$$2" \
  || "$$1/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$$2"; }; \
  install
#: Python's own variable, which some container images set: each process would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
#: Resolves for every version of Python and every platform, to a file without host names.
RESOLVE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
  --extra ui --extra serve --extra api --extra postgres --extra mysql --generate-hashes --no-header --no-annotate

.PHONY: help setup demo demo-postgres demo-mysql demo-lake demo-api demo-destination test test-all test-compat test-matrix test-readers test-up test-v2 test-spark40 check docs format pictures bench bench-tools protos lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(WARM)  ## create .venv from requirements.lock, and download Spark's jars

$(LOCKED): requirements.lock pyproject.toml scripts/find-python
	@python="$$(scripts/find-python)"; \
	if ! [ -x $(BIN)/python ]; then echo "Making $(VENV) with $$python"; "$$python" -m venv $(VENV); fi
	@echo "Installing what requirements.lock names"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' requirements.lock)
	@$(INSTALL) $(VENV) requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

#: The environment of airbyte-cdk, the reference of tests/compat.
$(COMPAT): requirements-compat.lock scripts/find-python | $(LOCKED)
	@"$$(scripts/find-python)" -m venv .venv-compat
	@echo "Installing what requirements-compat.lock names"
	@$(INSTALL) .venv-compat requirements-compat.lock
	@touch $@

#: Other readers of Iceberg tables, for tests/readers.
$(READERS): requirements-readers.lock scripts/find-python | $(LOCKED)
	@"$$(scripts/find-python)" -m venv .venv-readers
	@echo "Installing what requirements-readers.lock names"
	@$(INSTALL) .venv-readers requirements-readers.lock
	@touch $@

#: The oldest supported Spark; .venv has the newest.
$(SPARK40): requirements-spark40.lock pyproject.toml scripts/find-python | $(LOCKED)
	@"$$(scripts/find-python)" -m venv .venv-spark40
	@echo "Installing what requirements-spark40.lock names"
	@$(INSTALL) .venv-spark40 requirements-spark40.lock
	@.venv-spark40/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(WARM): $(LOCKED) src/chronolake/jars.py scripts/find-java
	@JAVA_HOME="$$(scripts/find-java)" $(BIN)/python -c 'from chronolake import jars, session; jars.paths(session.java_home())'
	@echo "Creating the archive of Spark's classes, which halves the start of Java"
	@JAVA_HOME="$$(scripts/find-java)" $(BIN)/python -m chronolake.class_training >/dev/null 2>&1 \
	  || echo "It could not be created: see the .failed file in the folder of Spark's jars"
	@touch $@

demo: demo-postgres  ## sync a PostgreSQL database twice, and show the tables' history

demo-postgres: setup  ## the same as demo
	@JAVA_HOME="$$(scripts/find-java)" examples/postgres.sh

demo-mysql: setup  ## sync MariaDB twice, and publish the tables' history to PostgreSQL
	@JAVA_HOME="$$(scripts/find-java)" examples/mysql.sh

demo-lake: setup  ## sync a data lake twice
	@JAVA_HOME="$$(scripts/find-java)" examples/data_lake.sh

demo-api: setup  ## sync an HTTP API, described by a manifest, twice
	@JAVA_HOME="$$(scripts/find-java)" examples/http_api.sh

demo-destination: setup  ## start a destination, replay real batch files, show the tables
	@JAVA_HOME="$$(scripts/find-java)" examples/demo.sh

#: The S3 server and the REST catalog of tests; without Go, tests of the former are skipped.
$(STORE): $(LOCKED) tests/support/store/server.py tests/support/catalogs/server.py scripts/find-java
	@PYTHONPATH=tests $(BIN)/python -m support.store.server
	@JAVA_HOME="$$(scripts/find-java)" PYTHONPATH=tests $(BIN)/python -m support.catalogs.server
	@touch $@

test: setup $(STORE)  ## run the tests that CI runs: all except the long ones
	@JAVA_HOME="$$(scripts/find-java)" $(PYTEST) -m "not long" $(ARGS)

test-all: setup $(COMPAT) $(READERS) $(STORE)  ## run all tests, with new random examples each time, or those of SEED=n
	@seed="$${SEED:-$$RANDOM}"; CHRONOLAKE_SEED="$$seed" JAVA_HOME="$$(scripts/find-java)" \
	  $(PYTEST) --hypothesis-profile=random --hypothesis-seed="$$seed" $(ARGS)
	@$(MAKE) test-up test-spark40 test-v2

test-up: setup  ## run crash tests and models again: destinations in `up`, syncs of models in an engine
	@TESTS_UP=on TESTS_ENGINE=off JAVA_HOME="$$(scripts/find-java)" $(PYTEST) tests/crash $(ARGS)
	@TESTS_UP=on JAVA_HOME="$$(scripts/find-java)" $(PYTEST) $(MODELS) $(ARGS)

test-spark40: $(SPARK40)  ## run the tests of lakes and destinations with Spark 4.0, the oldest supported one
	@JAVA_HOME="$$(scripts/find-java)" .venv-spark40/bin/python -m pytest $(SPREAD) tests/lake tests/server tests/unit/test_jars.py \
	  --ignore tests/server/test_protos.py $(ARGS)

test-v2: setup  ## run the tests of tables again with tables in Iceberg's format version 2
	@CHRONOLAKE_FORMAT_VERSION=2 JAVA_HOME="$$(scripts/find-java)" $(PYTEST) $(MODELS) tests/inspect tests/lake/test_lives.py \
	  tests/lake/test_pipeline_tables.py tests/lake/test_rebuild.py tests/server/test_alter.py tests/server/test_migrate.py \
	  tests/server/test_truncate.py tests/server/test_write_batch.py tests/server/test_write_history_batch.py -m "not long" $(ARGS)

test-compat: setup $(COMPAT)  ## compare how Chronolake and airbyte-cdk read manifests
	@$(PYTEST) tests/compat $(ARGS)

test-matrix: setup $(STORE)  ## run what a lake does in each place of tables with each catalog
	@JAVA_HOME="$$(scripts/find-java)" $(PYTEST) tests/matrix $(ARGS)

test-readers: setup $(READERS)  ## read tables with other readers: the table of docs/readers.md
	@JAVA_HOME="$$(scripts/find-java)" $(PYTEST) tests/readers $(ARGS)

check: $(LOCKED)  ## lint, format, types, layers, prose, docs
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/check_prose.py
	@$(MAKE) docs

docs: $(LOCKED)  ## build the docs site in site/, and fail on warnings
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(LOCKED)  ## format the code
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

pictures: setup  ## take the screenshots of docs/ui.md, from the project of make demo-lake
	@JAVA_HOME="$$(scripts/find-java)" $(BIN)/python scripts/ui-pictures

bench: setup  ## run the benchmarks; each prints ratios within one run
	@for file in bench/*.py; do \
	  echo "== $$file"; JAVA_HOME="$$(scripts/find-java)" $(BIN)/python "$$file"; \
	done

bench-tools:  ## install the tools that bench/ compares with, in .venv-bench
	@"$$(scripts/find-python)" -m venv .venv-bench
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check \
	  "dlt[duckdb]==1.31.0" "duckdb==2.0.0" "pyarrow==26.0.1" pandas "psycopg2-binary==2.9.11"

protos: $(LOCKED)  ## generate the Partner SDK's code from its .proto files
	@PATH="$(abspath $(BIN)):$$PATH" scripts/protos

lock: $(LOCKED)  ## resolve the dependencies again, within pyproject.toml's bounds
	@$(RESOLVE) --upgrade --group dev --output-file requirements.lock
	@cp requirements.lock requirements-spark40.lock  # the versions to keep
	@$(RESOLVE) --group test --overrides <(echo "pyspark>=4.0,<4.1") --output-file requirements-spark40.lock
	@cp requirements.lock deploy/requirements.lock
	@$(RESOLVE) --output-file deploy/requirements.lock

clean:  ## remove the files that targets created, except .venv
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist demo-api demo-lake demo-mysql demo-project demo-shop site spark-warehouse
