#!/bin/sh
# Builds a virtual environment from hash-locked files: venv.sh [--onto] DIRECTORY [LOCK...]
# From nothing, so that no package outlives its line in a lock; with --onto, on top of what an earlier call built there.
# DIRECTORY/locked marks success.
set -eu
onto=
if [ "$1" = --onto ]; then
    onto=yes
    shift
fi
directory=$1
shift

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

[ -n "$onto" ] || "$python" -m venv --clear "$directory"
locks=
for lock in "$@"; do
    locks="$locks -r $lock"
done
# A lock is complete (scripts/lock.py), so nothing is resolved: a resolver looks at newer releases than the lock's, and
# fails over one that it would choose for a package's extra. Unquoted on purpose: a list of words.
[ -z "$locks" ] ||
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps $locks
touch "$directory/locked"
