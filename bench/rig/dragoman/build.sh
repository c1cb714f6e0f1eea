#!/usr/bin/env bash
# Builds the gateway before the rig measures anything. It needs git, make, a C compiler and Python 3.11 with venv.
#
#   DRAGOMAN_SOURCE  the repository or a checkout of it; needed for the first build
#   DRAGOMAN_REF     a commit, tag or branch of it; its newest commit if not given
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
[ -d src ] || git clone -q "${DRAGOMAN_SOURCE:?names the repository or a checkout of it}" src
git -C src fetch -q
git -C src checkout -q "${DRAGOMAN_REF:-HEAD}"
make -C src install >&2
src/.venv/bin/dragoman --version
