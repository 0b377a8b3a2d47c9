# Shared functions of the demos: print a message; print a command and run it.

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
  printf '\033[2m$ %s\033[0m\n' "$*"
  "$@"
}

PATH="$PWD/.venv/bin:$PATH"
export CHRONOLAKE_SPARK_MASTER="${CHRONOLAKE_SPARK_MASTER:-local[*]}"
