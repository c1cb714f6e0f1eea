#!/bin/sh
# Makes the secrets of deploy/compose.yaml, once, in the folder `secrets` beside this file: keys of a client (app.key), of
# an admin, of the console and of Grafana's admin, and what the gateway reads of the first two.
#
# Only the folder's owner may enter it. The files are readable in containers, which run as other users.
set -eu
cd "$(dirname "$0")"
mkdir -m 0700 secrets
cd secrets
umask 022
for name in app admin console grafana; do
  openssl rand -hex 32 | tr -d '\n' >$name.key
done
hash() {
  openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
}
printf 'app:\n  team: demo\n  hash: "sha256:%s"\n' "$(hash app.key)" >keys.yaml
printf 'admin:\n  hash: "sha256:%s"\n' "$(hash admin.key)" >admins.yaml
