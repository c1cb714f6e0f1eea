#!/bin/sh
# Sees to it that Debian packages are installed: debian.sh PACKAGE...
# Installs what is missing when it may (root, on Debian); else says what is missing and ends with status 1.
set -eu
missing=
for package in "$@"; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "debian.sh: missing:$missing. On Debian, as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
# Unquoted on purpose: a list of words.
apt-get install --quiet=2 --yes --no-install-recommends $missing
