#!/usr/bin/env bash
# Starts a destination, sends real batch files to it over gRPC, and shows the tables.
# Run by `make demo-destination`. The lake is kept in demo-lake/ until the next run, for inspection.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly lake=demo-lake
readonly log=$lake/serve.log
readonly chronolake=.venv/bin/chronolake
server=

finish() {
  local code=$?
  trap - EXIT INT TERM
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  if [ "$code" -ne 0 ]; then
    printf '\nThe demo stopped with exit code %s.\n' "$code" >&2
    if [ -s "$log" ]; then
      printf 'The last lines of the destination'"'"'s log, %s:\n' "$log" >&2
      tail -n 5 "$log" | cut -c 1-400 >&2
    fi
    printf 'What to do: read the message above; `make setup` checks Java, Python and packages.\n' >&2
  fi
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# shellcheck source=showing.sh
source examples/showing.sh
export CHRONOLAKE_LAKE=$lake
rm -rf -- "$lake"
mkdir -p "$lake/files"

say "1. Start a destination with an empty lake in ./$lake"
printf '\033[2m$ chronolake serve --lake %s --port 0\033[0m\n' "$lake"
"$chronolake" serve --port 0 --files-root "$lake/files" >"$log" 2>"$lake/spark.log" &
server=$!

port=
for _ in $(seq 600); do
  port="$(sed -nE 's/.*"port": ?([0-9]+).*/\1/p' "$log" | head -n 1)"
  [ -z "$port" ] || break
  if ! kill -0 "$server" 2>/dev/null; then
    echo "The destination did not start." >&2
    exit 1
  fi
  sleep 0.1
done
if [ -z "$port" ]; then
  echo "The destination did not start within a minute." >&2
  exit 1
fi
echo "It listens on 127.0.0.1:$port."

say "2. Send encrypted, compressed batch files over gRPC, and check each response"
show chronolake test-destination examples --target "127.0.0.1:$port" --schema-name shop \
  --work-dir "$lake/files" --shuffle-seed 1

say "3. The tables (read by PyIceberg, without Spark)"
show chronolake tables

say "4. The timeline of an order, with a late version"
show chronolake history shop.orders --key id=101

say "5. A query in Spark SQL"
show chronolake query \
  'SELECT status, count(*) AS orders FROM shop.orders WHERE _fivetran_active GROUP BY status'

say "6. Check the invariants of all tables with Spark"
show chronolake verify --all

say "The lake is kept in ./$lake. Try also:"
echo "  .venv/bin/chronolake history shop.orders --key id=100 --lake $lake"
echo "  .venv/bin/chronolake query 'SELECT * FROM shop.customers' --lake $lake"
