#!/usr/bin/env bash
# Print the path of a kubectl that renders components and image volumes: from PATH, or Debian trixie's, unpacked below
# build/kubectl and not installed. Exit code 77: kubectl is not available; standard error has the reason.
set -euo pipefail

readonly UNAVAILABLE=77
readonly OLDEST_MINOR=27 # kustomize 5, which supports replacements with wildcards in lists

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

is_good() {
    local minor
    [ -x "$1" ] || return
    minor=$("$1" version --client --output json 2>/dev/null | sed -n 's/.*"minor": *"\([0-9]*\).*/\1/p' | head -n 1)
    [ "${minor:-0}" -ge "$OLDEST_MINOR" ]
}

kubectl=$(command -v kubectl || true)
if ! is_good "$kubectl"; then
    deploy/ci/debian.sh build/kubectl kubectl
    kubectl=$PWD/build/kubectl/usr/bin/kubectl
    is_good "$kubectl" || { echo "kubectl: Debian's is older than 1.$OLDEST_MINOR" >&2; exit "$UNAVAILABLE"; }
fi
echo "$kubectl"
