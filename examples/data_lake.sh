#!/usr/bin/env bash
# Syncs a Data Lake v2 twice, with new files in between, and shows a record's timeline.
# Run by `make demo-lake`. Everything stays in demo-project/ until the next run, for inspection.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly project=demo-project

# shellcheck source=showing.sh
source examples/showing.sh
export CHRONOLAKE_PROJECT=$project CHRONOLAKE_LAKE=$project/lake
rm -rf -- "$project"
mkdir -p "$project"
cp examples/data_lake.yml "$project/chronolake.yml"

say "1. Somebody writes a data lake: rows of record versions, out of order and some of them twice"
show python examples/data_lake.py "$project/source" first
show chronolake check
show chronolake discover crm

say "2. The first sync brings all of it"
show chronolake sync crm

say "3. More files arrive: late versions, a field that changes its type, a purge, a record come back"
show python examples/data_lake.py "$project/source" second
show chronolake sync crm
show chronolake status

say "4. The timeline of a record that was changed, deleted, and came back (no Spark)"
show chronolake history crm.accounts --key Id=acc9001

say "5. The accounts at an earlier time, and the invariants of the tables"
show chronolake query \
  "SELECT City, count(*) AS accounts, sum(Employees) AS employees FROM crm.accounts
   WHERE _fivetran_start <= TIMESTAMP'2026-01-15' AND _fivetran_end >= TIMESTAMP'2026-01-15'
   GROUP BY City ORDER BY City"
show chronolake query \
  "SELECT Id, City, grax__restoredfrom FROM crm.accounts WHERE grax__restoredfrom IS NOT NULL"
show chronolake verify --all

say "The project stays in ./$project. Look further:"
echo "  .venv/bin/chronolake runs --project $project"
echo "  .venv/bin/chronolake diff crm.accounts --from 2026-01-10 --to 2026-01-11 --lake $project/lake"
