#!/usr/bin/env bash
# Build the image with docker, or podman where there is no docker: deploy/image/build.sh [cpu|gpu] [TAG] [FLAG ...]
#
# FLAGs go to `docker build`, such as --build-arg BASE_IMAGE=registry.example/python:3.11. Version, revision and source
# become labels. $DRAGOMAN_DOCKER names another client. The gpu variant contains the models of `make gpu-models`.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

find_client() {
    local candidate
    for candidate in "${DRAGOMAN_DOCKER:-}" docker podman; do
        if [ -n "$candidate" ] && command -v "$candidate"; then
            return
        fi
    done
    echo "docker and podman are missing; install one of them, or set DRAGOMAN_DOCKER to another client" >&2
    return 1
}

version() {
    sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml | head -n 1
}

# The commit, with a suffix if the working tree has changes.
revision() {
    local commit
    commit=$(git rev-parse HEAD 2>/dev/null) || { echo unknown; return; }
    [ -z "$(git status --porcelain)" ] || commit+=-modified
    echo "$commit"
}

# The URL of the remote, without credentials.
origin() {
    local address
    address=$(git config --get remote.origin.url) || { echo unknown; return; }
    if [[ $address =~ ^([a-z+]+://)[^/@]*@(.*)$ ]]; then
        address=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
    fi
    echo "$address"
}

variant=${1:-cpu}
tag=${2:-dragoman:$variant}
shift "$(($# < 2 ? $# : 2))"
case $variant in
cpu) ;;
gpu)
    [ -d build/gpu/models ] || { echo "build/gpu/models is missing: run make gpu-models" >&2; exit 2; }
    set -- --build-arg MODELS=build/gpu/models "$@"
    ;;
*)
    echo "unknown variant '$variant'; expected cpu or gpu" >&2
    exit 2
    ;;
esac

client=$(find_client)
# The default image format of podman has no health check.
case $client in
*podman) set -- --format docker "$@" ;;
esac
exec env DOCKER_BUILDKIT=1 "$client" build --build-arg "VARIANT=$variant" --build-arg "VERSION=$(version)" \
    --build-arg "REVISION=$(revision)" --build-arg "SOURCE=$(origin)" --tag "$tag" "$@" .
