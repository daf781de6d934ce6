#!/usr/bin/env bash
# Install packages of Debian, one call of apt-get at a time: deploy/ci/install.sh PACKAGE ...
# Steps of CI that run at once wait for each other here, as apt-get fails when another one holds its locks. Needs root.
set -euo pipefail

readonly WAIT_S=600

[ "$#" -gt 0 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
exec 9>"${TMPDIR:-/tmp}/dragoman-apt.lock"
flock --timeout "$WAIT_S" 9 || { echo "another installation has not ended after $WAIT_S s" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq 9>&- # a daemon that a package starts must not keep the lock
apt-get install -qq -y --no-install-recommends -o "DPkg::Lock::Timeout=$WAIT_S" "$@" 9>&-
