#!/usr/bin/env bash
# Syncs a MariaDB database into the lake, and publishes the tables' history to PostgreSQL; twice,
# with changes in between. Run by `make demo-mysql`. Everything is kept in demo-mysql/.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly project=demo-mysql

# shellcheck source=showing.sh
source examples/showing.sh
# Run statements in the shop's database, and print them.
in_shop() {
  local statement
  for statement; do
    printf '\033[2mMariaDB [shop]> %s\033[0m\n' "$statement"
    python -c 'import sys, pymysql
with pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root", database="shop", autocommit=True) as shop:
    shop.cursor().execute(sys.argv[2])' "$MYSQL_PORT" "$statement"
  done
}
# Run a query in PostgreSQL, and print its result.
in_reporting() {
  printf '\033[2mreporting=# %s\033[0m\n' "$1"
  "$PSQL" --no-psqlrc --dbname "$REPORTING_DSN" --command "$1"
}

export CHRONOLAKE_PROJECT=$project CHRONOLAKE_LAKE=$project/lake
rm -rf -- "$project"
mkdir -p "$project"
cp examples/mysql.yml "$project/chronolake.yml"

python examples/mariadb.py > "$project/mariadb.env" &
readonly mariadb=$!
python examples/postgresql.py > "$project/postgresql.env" &
readonly postgresql=$!
trap 'kill "$mariadb" "$postgresql"; wait "$mariadb" "$postgresql" || true' EXIT
until [[ -s $project/mariadb.env && -s $project/postgresql.env ]]; do
  kill -0 "$mariadb" "$postgresql"
  sleep 0.1
done
# shellcheck source=/dev/null
source "$project/postgresql.env"
export REPORTING_DSN=$SHOP_DSN
# shellcheck source=/dev/null
source "$project/mariadb.env"

say "1. A MariaDB database with a small shop"
in_shop \
  "CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(50) NOT NULL, city VARCHAR(50))" \
  "CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, customer_id INT,
          state ENUM('placed','paid','shipped'), amount DECIMAL(10,2))" \
  "INSERT INTO customers VALUES (1, 'Ada', 'Oslo'), (2, 'Ben', 'Turin'), (3, 'Cleo', NULL)" \
  "INSERT INTO orders VALUES (101, 2, 'placed', 10), (102, 3, 'placed', 20), (103, 1, 'placed', 30)"

say "2. What the server needs, and what it has"
show chronolake check

say "3. The first sync copies the tables, and the target gets them"
show chronolake sync shop
show chronolake publish

say "4. Changes in the shop: updates, a rollback, a delete, another order of an ENUM's labels"
in_shop \
  "UPDATE orders SET state = 'paid' WHERE id = 101" \
  "UPDATE orders SET state = 'shipped', amount = 12 WHERE id = 101" \
  "DELETE FROM orders WHERE id = 102" \
  "ALTER TABLE orders MODIFY state ENUM('lost','placed','paid','shipped')" \
  "UPDATE orders SET state = 'lost' WHERE id = 103" \
  "UPDATE customers SET city = 'Rome' WHERE id = 2"

say "5. The second sync applies every committed change; the target gets what has changed"
show chronolake sync shop
show chronolake publish

say "6. The history in PostgreSQL"
in_reporting "SELECT id, state, amount, _fivetran_active AS active, _fivetran_start AS start
  FROM shop.orders ORDER BY id, _fivetran_start"
in_reporting "SELECT c.name, c.city, o.id, o.state FROM shop.orders o
  JOIN shop.customers c ON c.id = o.customer_id
  WHERE o._fivetran_active AND c._fivetran_active ORDER BY o.id"

say "The project is kept in ./$project."
