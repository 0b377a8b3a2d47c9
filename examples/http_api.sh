#!/usr/bin/env bash
# Syncs an HTTP API, described by a manifest, twice, with two weeks of changes in between; shows its
# slices, its state and an order's timeline.
# Run by `make demo-api`. Everything is kept in demo-api/ until the next run, for inspection.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly project=demo-api

# shellcheck source=showing.sh
source examples/showing.sh
export CHRONOLAKE_PROJECT=$project CHRONOLAKE_LAKE=$project/lake
rm -rf -- "$project"
mkdir -p "$project"
cp examples/http_api.yml "$project/chronolake.yml"
cp examples/http_api_manifest.yaml "$project/manifest.yaml"

python examples/http_api.py "$project/port" &
readonly api=$!
trap 'kill $api' EXIT
until [ -f "$project/port" ]; do sleep 0.1; done
SHOP_URL=http://127.0.0.1:$(cat "$project/port")
export SHOP_URL SHOP_TOKEN=demo-token SHOP_UNTIL=2026-01-14

set_clock() {
  python - "$SHOP_URL/clock" "$1" <<'PYTHON'
import json
import sys
import urllib.request

body = json.dumps({"now": sys.argv[2]}).encode()
urllib.request.urlopen(urllib.request.Request(sys.argv[1], body)).read()
PYTHON
}

say "1. On 14 January: check the manifest and the API"
set_clock 2026-01-14T23:00:00+00:00
show chronolake check
show chronolake discover shop

say "2. Read two records and show the requests: a slice is a week, a page has five records"
show chronolake read shop orders --limit 6

say "3. The first sync: orders by slices, comments of each order, all customers"
show chronolake sync shop
show chronolake state show shop --stream orders

say "4. Two weeks later: orders were paid, shipped and returned, and customers have moved"
export SHOP_UNTIL=2026-01-28
set_clock 2026-01-28T23:00:00+00:00
show chronolake sync shop
show chronolake state show shop --stream orders

say "5. The timeline of an order (without Spark): the API reports when each version starts"
show chronolake history shop.orders --key id=1015

say "6. The orders as of 14 January, and now"
show chronolake query \
  "SELECT status, count_if(_fivetran_start <= TIMESTAMP'2026-01-14 23:00:00'
                           AND _fivetran_end >= TIMESTAMP'2026-01-14 23:00:00') AS on_the_14th,
          count_if(_fivetran_active) AS now
   FROM shop.orders GROUP BY status ORDER BY status"
show chronolake verify --all

say "The project is kept in ./$project. Try also:"
echo "  .venv/bin/chronolake runs --project $project"
