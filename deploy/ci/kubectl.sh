#!/usr/bin/env bash
# Print the path of a kubectl that renders components and image volumes: the one on PATH, else Debian trixie's, unpacked
# below build/kubectl and not installed. Exit code 77: there is none; standard error says why.
set -euo pipefail

readonly NO_KUBECTL=77
readonly OLDEST_MINOR=27 # kustomize 5, which knows replacements with wildcards in lists

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
directory=$repository/build/kubectl

is_good() {
    local minor
    minor=$("$1" version --client --output json 2>/dev/null | sed -n 's/.*"minor": *"\([0-9]*\).*/\1/p' | head -n 1)
    [ "${minor:-0}" -ge "$OLDEST_MINOR" ]
}

# Download Debian's package from a newer release than this machine's, with lists and state apart from its own.
unpack() {
    local apt=$directory/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
        >"$apt/sources.list"
    local options=(
        -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
        -o Dir::State::Status=/dev/null -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none
    )
    apt-get "${options[@]}" update -qq \
        && (cd "$apt" && apt-get "${options[@]}" download -qq kubectl) \
        && dpkg-deb --extract "$apt"/kubectl_*.deb "$directory" \
        && rm -rf "$apt"
}

for candidate in "$(command -v kubectl || true)" "$directory/usr/bin/kubectl"; do
    if [ -x "$candidate" ] && is_good "$candidate"; then
        echo "$candidate"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null || ! unpack >&2; then
    echo "kubectl: none of version 1.$OLDEST_MINOR or newer on PATH, and Debian's cannot be had" >&2
    exit "$NO_KUBECTL"
fi
is_good "$directory/usr/bin/kubectl" || exit "$NO_KUBECTL"
echo "$directory/usr/bin/kubectl"
