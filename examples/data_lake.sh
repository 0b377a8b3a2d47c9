#!/usr/bin/env bash
# Syncs a Data Lake v2 twice, with new files in between, and shows a record's timeline.
# Run by `make demo-lake`. Everything is kept in demo-project/ until the next run, for inspection.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly project=demo-project

# shellcheck source=showing.sh
source examples/showing.sh
export CHRONOLAKE_PROJECT=$project CHRONOLAKE_LAKE=$project/lake
rm -rf -- "$project"
mkdir -p "$project"
cp examples/data_lake.yml "$project/chronolake.yml"

say "1. A data lake that another program writes: record versions, out of order and with duplicates"
show python examples/data_lake.py "$project/source" first
show chronolake check
show chronolake discover crm

say "2. The first sync applies all files"
show chronolake sync crm

say "3. More files: late versions, a field with another type, a purge, a record inserted again"
show python examples/data_lake.py "$project/source" second
show chronolake sync crm
show chronolake status

say "4. The timelines of a record that was changed, deleted and inserted again, and of one that was restored from it"
show chronolake history crm.accounts --key Id=acc9001
show chronolake history crm.accounts --key Id=acc9003

say "5. The accounts at an earlier time, and the invariants of the tables"
show chronolake query \
  "SELECT City, count(*) AS accounts, sum(Employees) AS employees FROM crm.accounts
   WHERE _fivetran_start <= TIMESTAMP'2026-01-15' AND _fivetran_end >= TIMESTAMP'2026-01-15'
   GROUP BY City ORDER BY City"
show chronolake query \
  "SELECT Id, City, grax__restoredfrom FROM crm.accounts WHERE grax__restoredfrom IS NOT NULL"
show chronolake verify --all

say "The project is kept in ./$project. Try also:"
echo "  .venv/bin/chronolake runs --project $project"
echo "  .venv/bin/chronolake diff crm.accounts --from 2026-01-10 --to 2026-01-11 --lake $project/lake"
