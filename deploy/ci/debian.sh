#!/usr/bin/env bash
# Download packages of Debian and unpack them below a directory: deploy/ci/debian.sh DIRECTORY PACKAGE ...
# Nothing is installed: no daemon starts, and the state of apt does not change. Unpacked packages are reused.
#
#   DRAGOMAN_DEBIAN_MIRROR    another mirror than deb.debian.org
#   DRAGOMAN_DEBIAN_SUITE     another release than trixie
#
# Exit code 77: the packages are not available here; standard error has the reason.
set -euo pipefail

readonly UNAVAILABLE=77
readonly MIRROR=${DRAGOMAN_DEBIAN_MIRROR:-http://deb.debian.org/debian} SUITE=${DRAGOMAN_DEBIAN_SUITE:-trixie}

[ "$#" -gt 1 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
[ "$(cat "$directory/.unpacked" 2>/dev/null)" != "$*" ] || exit 0

unpack() {
    local apt=$directory/.apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR $SUITE main" >"$apt/sources.list"
    local options=(
        -qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
        -o Dir::State::Status=/dev/null -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User= -o Acquire::Languages=none
    )
    apt-get "${options[@]}" update && (cd "$apt" && apt-get "${options[@]}" download "$@") || return
    for package in "$apt"/*.deb; do
        dpkg-deb --extract "$package" "$directory" || return
    done
    rm -rf "$apt"
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "debian: apt-get and dpkg-deb are missing, needed for $*" >&2
    exit "$UNAVAILABLE"
fi
output=$(unpack "$@" 2>&1) || { echo "debian: $* cannot be fetched: ${output##*$'\n'}" >&2; exit "$UNAVAILABLE"; }
echo "$*" >"$directory/.unpacked"
