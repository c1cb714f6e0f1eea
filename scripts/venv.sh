#!/bin/sh
# Builds a virtual environment from hash-locked files: venv.sh [--onto] DIRECTORY [LOCK...]
# From nothing, so that no package outlives its line in a lock; with --onto, on top of what an earlier call built there.
# DIRECTORY/locked marks success.
#
# pip installs uv into .venv, and uv installs all else, in every environment: uv links files from its cache, so an
# environment that this machine has had before takes a second.
set -eu
onto=
if [ "$1" = --onto ]; then
    onto=yes
    shift
fi
directory=$1
shift
cd "$(dirname "$0")/.."
pip=.venv/bin/pip

if [ "$directory" = .venv ] && [ -z "$onto" ]; then
    for python in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        [ -n "$python" ] || continue
        # Run it: a version manager's shim may exist without the interpreter behind it.
        "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break
        python=
    done
    if [ -z "$python" ]; then
        echo "venv.sh: Python 3.11 or later with the venv module is needed; set PYTHON=/path/to/python" >&2
        exit 1
    fi
    "$python" -m venv --clear .venv
    $pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements/uv.txt
elif [ -z "$onto" ]; then
    .venv/bin/uv --quiet venv --clear --python .venv/bin/python "$directory"
fi

# uv does not read pip's settings of indexes, further places and certificates, and a machine may have only those.
settings=$($pip config list)
setting() { # The environment goes before the file, as in pip.
    for place in :env: global; do
        value=$(printf '%s\n' "$settings" | sed -n "s/^$place\.$1='\(.*\)'\$/\1/p" | sed 's/\\n/ /g')
        [ -z "$value" ] || break
    done
    printf '%s' "$value"
}
default() { # default UV_NAME VALUE: a setting of uv's own goes first
    eval "value=\${$1:-}"
    [ -n "$value" ] || [ -z "$2" ] || export "$1=$2"
}
default UV_DEFAULT_INDEX "$(setting index-url)"
default UV_INDEX "$(setting extra-index-url)"
default UV_FIND_LINKS "$(setting find-links | tr ' ' ',')"
default SSL_CERT_FILE "$(setting cert)"
export UV_INDEX_STRATEGY=unsafe-best-match UV_PYTHON_DOWNLOADS=never

locks=
for lock in "$@"; do
    locks="$locks --requirement $lock"
done
# A lock is complete (scripts/lock.py), so nothing is resolved: a resolver looks at newer releases than the lock's, and
# fails over one that it would choose for a package's extra. Unquoted on purpose: a list of words.
[ -z "$locks" ] ||
    .venv/bin/uv --quiet pip install --python "$directory/bin/python" --require-hashes --no-deps $locks
touch "$directory/locked"
