#!/usr/bin/env bash
# Does docker-compose.yml do what it says? Validates it, then runs it: up --wait, a translation through Envoy's port,
# one replica stopped and started again, a little load, everything scraped by Prometheus, all replicas replaced, keys.
#
#   deploy/ci/compose_test.sh             validate and run
#   deploy/ci/compose_test.sh validate    validate only; needs no engine
#
# Without a registry the programs around the server come from packages (deploy/ci/compose.offline.yml), and Grafana is
# left out. COMPOSE_TEST_ONLINE=1 pulls the images that the file names instead, Grafana's among them.
#
# The last line says what was seen. One that begins with SKIPPED says what was not done because a tool cannot be had
# here; the exit code is 0 then.
set -euo pipefail

readonly PROJECT=dragoman-ci
readonly WAIT_S=180
readonly NO_ENGINE=77
readonly PACKAGES=(docker-compose prometheus prometheus-alertmanager busybox-static)

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repository"
tools=$repository/build/compose-tools
python=${PYTHON:-$repository/.venv/bin/python}
compose=$tools/root/usr/libexec/docker/cli-plugins/docker-compose

say() {
    echo "compose-test: $*" >&2
}

fail() {
    say "$1"
    exit 1
}

skip() {
    echo "SKIPPED: $1"
    exit 0
}

fetch_packages() {
    deploy/ci/debian.sh "$tools/root" "${PACKAGES[@]}" || skip "docker-compose and what it runs come from Debian (see above)"
    [ -x "$tools/venv/bin/check-jsonschema" ] || {
        "$python" -m venv "$tools/venv"
        "$tools/venv/bin/python" -m pip --disable-pip-version-check install --quiet check-jsonschema
    } >"$tools/pip.log" 2>&1 || skip "check-jsonschema cannot be installed; $tools/pip.log says why"
}

# Every combination that the files name is a valid one; the profile `gpu` asks for a GPU, and no other does.
validate() {
    local callers
    callers=$(mktemp)
    env -u DOCKER_HOST "$compose" config --quiet
    env -u DOCKER_HOST "$compose" --profile gpu --profile load config --quiet
    CALLERS_FILE=$callers "$compose" -f docker-compose.yml -f deploy/compose/keys.yml config --quiet
    rm "$callers"
    # Not `grep -q`: it ends at the first match, and a program that still writes would end with SIGPIPE, not with 0.
    "$compose" --profile gpu config | grep 'driver: nvidia' >/dev/null || fail "the profile gpu reserves no GPU"
    ! "$compose" config | grep 'driver: nvidia' >/dev/null || fail "a GPU is reserved without the profile gpu"
    "$tools/venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec docker-compose.yml \
        deploy/compose/keys.yml deploy/ci/compose.offline.yml
}

# What the stand-ins are made of, in one folder.
gather_stand_ins() {
    local envoy
    envoy=$("$python" -c 'from pathlib import Path; from deploy.ci.processes import find_envoy
print(find_envoy(Path("build")))') || skip "Envoy cannot be had here"
    STAND_INS=$tools/stand-ins
    export STAND_INS
    mkdir -p "$STAND_INS"
    cp -u deploy/ci/stand_ins.Dockerfile "$STAND_INS/Dockerfile"
    cp -u "$envoy" "$tools/root/usr/bin/prometheus" "$STAND_INS/"
    cp -u "$tools/root/usr/bin/prometheus-alertmanager" "$STAND_INS/alertmanager"
    cp -ruT "$tools/root/usr/share/prometheus/alertmanager" "$STAND_INS/alertmanager-templates"
    cp -u "$tools/root/usr/bin/busybox" "$STAND_INS/busybox"
}

stack() {
    "$compose" "${files[@]}" --project-name "$PROJECT" "$@"
}

take_down() {
    local code=$1
    if [ "$code" -ne 0 ]; then
        stack ps --all >&2 || true
        stack logs --no-color --tail 30 >&2 || true
    fi
    stack --profile load down --volumes --remove-orphans --timeout 40 >"$tools/down.log" 2>&1 ||
        say "not everything could be removed; $tools/down.log says why"
}

# Translate through the port of Envoy that is published on this machine: translate [FLAG ...]
translate() {
    "$python" -m dragoman_service translate --target "$(stack port envoy 50051)" "$@" "The weather is nice today."
}

# The answer must come, and be German.
require_translation() {
    local answer
    answer=$(translate "$@") || fail "a call failed"
    [[ $answer == *Wetter* ]] || fail "a call was answered with: $answer"
}

# Ask Prometheus; prints the value of a query whose result is one number.
ask_prometheus() {
    stack exec -T prometheus wget -q -O - "http://127.0.0.1:9090/api/v1/query?query=$1" |
        "$python" -c 'import json, sys
result = json.load(sys.stdin)["data"]["result"]
print(int(float(result[0]["value"][1])) if result else 0)'
}

# Wait until a query says what it should: wait_for QUERY NUMBER.
wait_for() {
    local seen=
    for _ in $(seq "$WAIT_S"); do
        seen=$(ask_prometheus "$1")
        [ "$seen" != "$2" ] || return 0
        sleep 1
    done
    fail "Prometheus says $seen for $1, expected $2"
}

# Replace every replica, one after the other, while calls go on; prints how many were made.
roll() {
    local before after calls=0 rolling
    before=$(stack ps --quiet dragoman | sort)
    COMPOSE=$compose deploy/compose/roll.sh "${files[@]}" --project-name "$PROJECT" >"$tools/roll.log" 2>&1 &
    rolling=$!
    while kill -0 "$rolling" 2>/dev/null; do
        require_translation
        calls=$((calls + 1))
    done
    wait "$rolling" || fail "roll.sh fails; $tools/roll.log says why"
    after=$(stack ps --quiet dragoman | sort)
    [ "$(printf '%s\n' "$before" "$after" | sort | uniq -d | wc -l)" = 0 ] || fail "a replica was not replaced"
    [ "$(wc -l <<<"$after")" = 2 ] || fail "not two replicas are left"
    echo "$calls"
}

# The override that asks callers for keys: without one a call is rejected, with one it is answered.
ask_for_keys() {
    local rejection
    "$python" -m dragoman_service keys new shop >"$tools/shop.key" 2>"$tools/keys.log"
    sed -n '/^\[\[caller/,$p' "$tools/keys.log" >"$tools/callers.toml"
    chmod 644 "$tools/callers.toml"
    files+=(-f deploy/compose/keys.yml)
    export CALLERS_FILE=$tools/callers.toml
    stack up --detach --no-build --wait --wait-timeout "$WAIT_S" dragoman >"$tools/keys-up.log" 2>&1 || {
        cat "$tools/keys-up.log" >&2
        fail "up --wait fails with keys"
    }
    for _ in $(seq 15); do # until Envoy knows the new replicas
        ! translate --api-key-file "$tools/shop.key" >/dev/null 2>&1 || break
        sleep 1
    done
    require_translation --api-key-file "$tools/shop.key"
    rejection=$(translate 2>&1) && fail "a call without a key was answered"
    [[ $rejection == *UNAUTHENTICATED* ]] || fail "a call without a key was answered with: $rejection"
}

run_stack() {
    local began=$SECONDS up_s calls replica rolled
    trap 'take_down $?' EXIT
    stack up --detach --no-build --wait --wait-timeout "$WAIT_S" >"$tools/up.log" 2>&1 || {
        cat "$tools/up.log" >&2
        fail "up --wait fails"
    }
    up_s=$((SECONDS - began))
    require_translation

    # Calls go on while one replica drains and after it has gone.
    replica=$(stack ps --quiet dragoman)
    replica=${replica%%$'\n'*}
    "$DRAGOMAN_DOCKER" stop --time 40 "$replica" >/dev/null &
    for calls in $(seq 20); do
        require_translation
    done
    wait "$!"
    [ "$("$DRAGOMAN_DOCKER" inspect --format '{{.State.ExitCode}}' "$replica")" = 0 ] || fail "the drain failed"
    require_translation
    "$DRAGOMAN_DOCKER" start "$replica" >/dev/null

    # The load goes on while the replica returns, and while Prometheus scrapes everything for the first time.
    LOAD_TIME=8s stack run --rm --no-deps load >"$tools/load.log" 2>&1 || {
        tail -n 40 "$tools/load.log" >&2
        fail "calls of the load failed"
    }
    wait_for 'sum(up%7Bjob=%22dragoman%22%7D)' 2
    wait_for 'sum(up%7Bjob=%22envoy%22%7D)' 1
    wait_for 'sum(prometheus_notifications_alertmanagers_discovered)' 1
    wait_for 'max(envoy_cluster_membership_healthy%7Benvoy_cluster_name=%22dragoman%22%7D)' 2
    rolled=$(roll)
    ask_for_keys
    echo "compose up_s=$up_s replicas=2 calls_without_one=$((calls + 1))" \
        "calls_while_rolling=$rolled failed=0 keys=asked" \
        "load=$(grep -oE 'Aggregated +[0-9]+ +[0-9]+' "$tools/load.log" | head -n 1 | tr -s ' ' | tr ' ' '/')" \
        "seconds=$((SECONDS - began)) without=${without:-nothing}"
}

prepare_images() {
    files=(-f docker-compose.yml)
    if [ -z "${COMPOSE_TEST_ONLINE:-}" ]; then
        files+=(-f deploy/ci/compose.offline.yml)
        without=grafana
        gather_stand_ins
        export BASE_IMAGE=${DRAGOMAN_BASE_IMAGE:-python:3.11-slim-bookworm}
        say "Grafana cannot be had without a registry and is left out"
    fi
    stack --profile load build envoy prometheus alertmanager load >"$tools/build.log" 2>&1 || {
        tail -n 30 "$tools/build.log" >&2
        fail "the images around the server cannot be built; $tools/build.log has it all"
    }
}

case ${1:-} in
"" | validate)
    fetch_packages
    validate
    [ -z "${1:-}" ] || exit 0
    code=0
    deploy/ci/engine.sh run "${BASH_SOURCE[0]}" inside || code=$?
    [ "$code" -ne "$NO_ENGINE" ] || skip "no container engine can be had here; docker-compose.yml was validated only"
    exit "$code"
    ;;
inside)
    exports=$(deploy/ci/engine.sh image)
    eval "$exports"
    # Free ports, so that nothing else on this machine is in the way.
    export GRPC_PORT=0 GRAFANA_PORT=0 SERVER_IMAGE=$DRAGOMAN_IMAGE
    prepare_images
    run_stack
    ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
