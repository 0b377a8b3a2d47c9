#!/usr/bin/env bash
# Syncs a PostgreSQL database twice, with changes in between; every committed change is kept.
# Run by `make demo`. Everything is kept in demo-shop/ until the next run, for inspection.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly project=demo-shop

# shellcheck source=showing.sh
source examples/showing.sh
# Run statements in the shop's database, and print them as in psql.
in_shop() {
  local statement
  for statement; do
    printf '\033[2mshop=# %s\033[0m\n' "$statement"
    "$PSQL" --quiet --no-psqlrc --dbname "$SHOP_DSN" --command "$statement"
  done
}

export CHRONOLAKE_PROJECT=$project CHRONOLAKE_LAKE=$project/lake
rm -rf -- "$project"
mkdir -p "$project"
cp examples/postgres.yml "$project/chronolake.yml"

python examples/postgresql.py > "$project/server.env" &
readonly server=$!
trap 'kill "$server"; wait "$server" || true' EXIT
until [[ -s $project/server.env ]]; do
  kill -0 "$server"
  sleep 0.1
done
# shellcheck source=/dev/null
source "$project/server.env"

say "1. A PostgreSQL database with a small shop"
in_shop \
  "CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text);" \
  "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers,
          status text, amount numeric(10,2), manual text);" \
  "INSERT INTO customers VALUES (1, 'Ada', 'Oslo'), (2, 'Ben', 'Turin'), (3, 'Cleo', NULL);" \
  "INSERT INTO orders SELECT n, 1 + n % 3, 'placed', 10 * n,
          (SELECT string_agg(md5(n::text || i), '') FROM generate_series(1, 500) AS i)
          FROM generate_series(101, 105) AS n;"

say "2. What the server lacks, and how to fix it; --create creates slot and publication"
show chronolake check || true
show chronolake check --create

say "3. The first sync copies the tables"
show chronolake sync shop
moment=$("$PSQL" --no-psqlrc --dbname "$SHOP_DSN" --tuples-only --no-align \
  --command "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')")
readonly moment

say "4. Changes in the shop: several updates of an order, a rollback, a delete, a new column"
in_shop \
  "UPDATE orders SET status = 'paid' WHERE id = 101;" \
  "UPDATE orders SET status = 'packed' WHERE id = 101;" \
  "BEGIN; UPDATE orders SET status = 'stolen'; ROLLBACK;" \
  "BEGIN; UPDATE orders SET amount = 0 WHERE id = 101;
          UPDATE orders SET status = 'shipped', amount = 1005 WHERE id = 101; COMMIT;" \
  "DELETE FROM orders WHERE id = 102;" \
  "UPDATE customers SET city = 'Rome' WHERE id = 2;" \
  "ALTER TABLE customers ADD COLUMN vip boolean DEFAULT false;" \
  "INSERT INTO customers VALUES (4, 'Dina', 'Lima', true);"

say "5. The second sync applies every committed change"
show chronolake sync shop
show chronolake status

say "6. The timeline of an order (without Spark); its unchanged manual was not in the log"
show chronolake history shop.orders --key id=101

say "7. The shop at an earlier time, and now"
show chronolake query \
  "SELECT c.name, c.city, o.id, o.status, o.amount, length(o.manual) AS manual
   FROM shop.orders o JOIN shop.customers c ON c.id = o.customer_id
   WHERE TIMESTAMP'$moment' BETWEEN o._fivetran_start AND o._fivetran_end
     AND TIMESTAMP'$moment' BETWEEN c._fivetran_start AND c._fivetran_end ORDER BY o.id"
show chronolake query \
  "SELECT c.name, c.city, c.vip, o.id, o.status, o.amount, length(o.manual) AS manual
   FROM shop.orders o JOIN shop.customers c ON c.id = o.customer_id
   WHERE o._fivetran_active AND c._fivetran_active ORDER BY o.id"
show chronolake verify --all

say "The project is kept in ./$project. Try also:"
echo "  .venv/bin/chronolake history shop.customers --key id=2 --lake $project/lake"
echo "  .venv/bin/chronolake runs --project $project"
