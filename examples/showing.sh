# What the demos share: what they say, and that commands are shown before they run.

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
  printf '\033[2m$ %s\033[0m\n' "$*"
  "$@"
}

PATH="$PWD/.venv/bin:$PATH"
export CHRONOLAKE_SPARK_MASTER="${CHRONOLAKE_SPARK_MASTER:-local[*]}"
