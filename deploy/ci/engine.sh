#!/usr/bin/env bash
# A container engine for the tests of images and stacks: the user's own if one answers, else a private one.
#
#   deploy/ci/engine.sh start          start an engine unless one runs; print what its clients need, as exports
#   deploy/ci/engine.sh env            print these exports for the engine that runs; fail if none does
#   deploy/ci/engine.sh image          start, build the CPU image and print the exports, its name among them
#   deploy/ci/engine.sh run COMMAND    start, run COMMAND with the exports, stop what this call has started
#   deploy/ci/engine.sh stop           stop the private engine and unmount what it left; images and caches stay
#   deploy/ci/engine.sh clean          stop it and delete images, caches and the base
#
# The private engine is Debian's docker.io, installed if it is missing; that needs root. Its bridge and firewall rules
# stay off, so a container takes `--network host` or a network of its own. As it is meant for machines without a
# registry, it imports a stand-in for the official Python image, made of Debian packages.
#
# Some exports begin like settings of the server: a server on this machine must not get them (`env -u`); it would not start.
#
# Exit code 77: no engine can be had here; standard error says why.
#
#   DRAGOMAN_IMAGE         given, and not dragoman:ci: an image that is there already; nothing is built
#   DRAGOMAN_BASE_IMAGE    given: the base to build on, instead of the stand-in (private engine) or the default
#   DRAGOMAN_ENGINE_DIR    where the private engine keeps its data (build/engine)
set -euo pipefail

readonly NO_ENGINE=77
readonly STAND_IN=localbase/python:3.11
readonly BUILT_IMAGE=dragoman:ci
readonly START_TIMEOUT_S=30
readonly STOP_TIMEOUT_S=30

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
directory=${DRAGOMAN_ENGINE_DIR:-$repository/build/engine}
client=/usr/bin/docker
[ -x "$client" ] || client=docker

say() {
    echo "engine: $*" >&2
}

fail() {
    say "$1"
    exit "${2:-1}"
}

# The directory with socket, PID file and log of the private engine; apart from its data, as a socket's path is short.
runtime_directory() {
    [ -f "$directory/runtime" ] && cat "$directory/runtime"
}

private_host() {
    local runtime
    runtime=$(runtime_directory) || return 1
    [ -S "$runtime/docker.sock" ] && echo "unix://$runtime/docker.sock"
}

answers() {
    DOCKER_HOST=$1 timeout 10 "$client" version --format '{{.Server.Version}}' >/dev/null 2>&1
}

own_host() {
    local host=${DOCKER_HOST:-}
    [ -n "$host" ] || host=$("$client" context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) || return 1
    answers "$host" && echo "$host"
}

# Print the address of the engine that runs, the private one first.
running_host() {
    local host
    if host=$(private_host) && answers "$host"; then
        echo "$host"
    else
        own_host
    fi
}

is_private() {
    [ "$1" = "$(private_host || true)" ]
}

print_exports() {
    local host=$1 base=${DRAGOMAN_BASE_IMAGE:-}
    if [ -z "$base" ] && is_private "$host"; then
        base=$STAND_IN
    fi
    printf 'export DOCKER_HOST=%q\n' "$host"
    printf 'export DRAGOMAN_DOCKER=%q\n' "$client"
    printf 'export DRAGOMAN_BASE_IMAGE=%q\n' "$base"
    printf 'export DRAGOMAN_IMAGE=%q\n' "${DRAGOMAN_IMAGE:-$BUILT_IMAGE}"
    printf 'export DOCKER_BUILDKIT=1\n'
}

install_engine() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    if [ ! -f "$directory/base.tar" ] && ! command -v mmdebstrap >/dev/null; then
        missing+=(mmdebstrap)
    fi
    [ "$(id -u)" -eq 0 ] || fail "no container engine answers, and starting one needs root" "$NO_ENGINE"
    [ "${#missing[@]}" -gt 0 ] || return 0
    command -v apt-get >/dev/null || fail "no container engine answers; install ${missing[*]}" "$NO_ENGINE"
    say "installing ${missing[*]}"
    "$repository/deploy/ci/install.sh" "${missing[@]}" >"$directory/apt.log" 2>&1 ||
        fail "${missing[*]} cannot be installed; $directory/apt.log says why" "$NO_ENGINE"
    client=/usr/bin/docker
}

# What this machine needs to reach its package index belongs to the base, so that the Dockerfile knows nothing of it.
make_base() {
    local hooks=() file
    [ ! -f "$directory/base.tar" ] || return 0
    say "making a base image of Debian packages"
    for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ ! -f "$file" ] || hooks+=("--customize-hook=upload $file $file")
    done
    # shellcheck disable=SC2016  # mmdebstrap's hooks get the root as $1
    mmdebstrap --quiet --variant=minbase --aptopt='APT::Install-Recommends "false"' \
        --include=ca-certificates,netbase,python3,python3-venv,tzdata "${hooks[@]}" \
        --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
        --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python3"' \
        --customize-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/man "$1"/var/cache/apt "$1"/var/lib/apt/lists' \
        bookworm "$directory/base.partial.tar" >"$directory/base.log" 2>&1 ||
        fail "the base image cannot be made; $directory/base.log says why"
    mv "$directory/base.partial.tar" "$directory/base.tar"
}

import_base() {
    "$client" image inspect "$STAND_IN" >/dev/null 2>&1 && return
    make_base
    "$client" import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
        -c 'CMD ["python3"]' "$directory/base.tar" "$STAND_IN" >/dev/null
}

# A daemon that kept its caller's files would hold the caller's locks and pipes for as long as it runs.
close_inherited_files() {
    local path number
    for path in "/proc/$BASHPID/fd/"*; do
        number=${path##*/}
        [ "$number" -le 2 ] || exec {number}>&- || true
    done
}

start_private() {
    local runtime waited=0
    runtime=$(mktemp -d "${TMPDIR:-/tmp}/dragoman-engine.XXXXXX")
    echo "$runtime" >"$directory/runtime"
    say "starting an engine of its own; its log is $runtime/log"
    (
        close_inherited_files
        exec setsid dockerd --data-root "$directory/root" --exec-root "$runtime/exec" --pidfile "$runtime/pid" \
            --host "unix://$runtime/docker.sock" --bridge none --iptables=false
    ) >"$runtime/log" 2>&1 </dev/null &
    until answers "unix://$runtime/docker.sock"; do
        if [ "$waited" -ge "$((START_TIMEOUT_S * 5))" ] || ! kill -0 "$!" 2>/dev/null; then
            tail -n 20 "$runtime/log" >&2
            stop_private
            fail "dockerd does not start" "$NO_ENGINE"
        fi
        waited=$((waited + 1))
        sleep 0.2
    done
}

# Start an engine unless one runs. Two callers at once start one.
start() {
    running_host >/dev/null && return
    mkdir -p "$directory"
    exec 9>"$directory/lock"
    flock 9
    if ! running_host >/dev/null; then
        stop_private # what is left of one that was killed
        install_engine
        start_private
    fi
    DOCKER_HOST=$(running_host) import_base
    flock --unlock 9
    exec 9>&-
}

unmount_below() {
    local path
    findmnt --raw --noheadings --output TARGET | { grep -F "$1/" || true; } | sort --reverse | while read -r path; do
        umount --lazy "$path"
    done
}

# Containers outlive a daemon that was killed; their shims name its directory, which is like no other.
end_orphans() {
    local shim
    for shim in $(pgrep --full -- "$1/exec/"); do
        pkill --signal KILL --parent "$shim" || true
        kill -KILL "$shim" 2>/dev/null || true
    done
}

stop_private() {
    local runtime pid waited=0
    runtime=$(runtime_directory) || return 0
    if [ -f "$runtime/pid" ] && pid=$(cat "$runtime/pid") && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do
            [ "$waited" -lt "$((STOP_TIMEOUT_S * 5))" ] || fail "dockerd ($pid) does not end; its log is $runtime/log"
            waited=$((waited + 1))
            sleep 0.2
        done
    fi
    end_orphans "$runtime"
    unmount_below "$runtime"
    unmount_below "$directory"
    rm -rf "$runtime" "$directory/runtime"
}

require_host() {
    running_host || fail "none runs; start one with deploy/ci/engine.sh start"
}

# Extra words of `docker build` for the engine that runs; one a line.
build_words() {
    [ -z "${DRAGOMAN_BASE_IMAGE:-}" ] || printf '%s\n' --build-arg "BASE_IMAGE=$DRAGOMAN_BASE_IMAGE"
    ! is_private "$DOCKER_HOST" || printf '%s\n' --network host
}

build_image() {
    local words
    if [ "$DRAGOMAN_IMAGE" != "$BUILT_IMAGE" ]; then
        "$client" image inspect "$DRAGOMAN_IMAGE" >/dev/null || fail "there is no image $DRAGOMAN_IMAGE"
        return
    fi
    mapfile -t words < <(build_words)
    say "building $BUILT_IMAGE"
    mkdir -p "$directory"
    "$repository/deploy/image/build.sh" cpu "$BUILT_IMAGE" "${words[@]}" >"$directory/build.log" 2>&1 || {
        tail -n 40 "$directory/build.log" >&2
        fail "the image cannot be built; $directory/build.log has it all"
    }
}

command=${1:-}
[ "$#" -eq 0 ] || shift
case $command in
start)
    start
    host=$(require_host)
    print_exports "$host"
    ;;
env)
    host=$(require_host)
    print_exports "$host"
    ;;
image)
    start
    host=$(require_host)
    eval "$(print_exports "$host")"
    build_image
    print_exports "$host"
    ;;
run)
    [ "$#" -gt 0 ] || fail "usage: deploy/ci/engine.sh run COMMAND [ARGUMENT ...]" 2
    running_host >/dev/null || trap stop_private EXIT
    start
    host=$(require_host)
    eval "$(print_exports "$host")"
    "$@"
    ;;
stop)
    stop_private
    ;;
clean)
    stop_private
    rm -rf "$directory"
    ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
