#!/usr/bin/env bash
# Run the rendered Deployment of overlays/cpu as podman does it, with its security context, its settings and a new key:
# it must become ready, translate, reject callers without a key, be confined as its manifest says, and drain when it is
# stopped; then with components/tls it must encrypt.
#
# Needs root and Debian's podman and runc, which are installed if they are missing; images, networks and state of podman
# are below a temporary directory, apart from the user's. Where podman cannot be had the test says SKIPPED, exit code 0.
#
# Not done by podman 4.3: Secrets in volumes (ConfigMaps take their place), Services and everything else but
# Deployment, ConfigMap, Secret and volume claims; gRPC probes, preStop, terminationGracePeriodSeconds (its own stop
# timeout is set to it), fsGroup, modes of files in volumes, limits of emptyDir and ephemeral storage, topology spread.
set -euo pipefail

readonly READY_TIMEOUT_S=60
readonly OVERLAY=deploy/kubernetes/overlays/cpu
readonly COMPONENTS=deploy/kubernetes/components
readonly NO_TOOL=77

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
export PYTHONPATH="$PWD:$PWD/proto"
work=$(mktemp -d /tmp/kube-play.XXXXXX)
played=no
container=

skip() {
    echo "SKIPPED: kube_play_test: $1" >&2
    exit 0
}

fail() {
    echo "kube_play_test: $1" >&2
    if [ -s "$work/server.log" ]; then
        tail -n 20 "$work/server.log" >&2
    elif [ -n "$container" ]; then
        podman logs --tail 20 "$container" >&2 || true
    fi
    exit 1
}

# Podman with images, network and state below $work.
podman() {
    CONTAINERS_CONF=$work/containers.conf command podman --root "$work/root" --runroot "$work/run" --tmpdir "$work/tmp" \
        --network-config-dir "$work/net" --runtime "$runc" --cgroup-manager cgroupfs --events-backend file "$@"
}

# CNI leaves its bridges behind.
bridges() {
    find /sys/class/net -name 'cni-podman*' -printf '%f\n' | sort
}

clean_up() {
    local code=$? bridge
    [ $played = no ] || podman kube down "$work/play.yaml" >"$work/down.log" 2>&1 || cat "$work/down.log" >&2
    if [ -d "$work/root" ]; then
        podman network rm --force podman-default-kube-network >/dev/null 2>&1 || true
        podman system reset --force >/dev/null 2>&1 || true
        for bridge in $(comm -13 <(echo "$bridges_before") <(bridges)); do
            ip link delete "$bridge" || true
        done
    fi
    rm -rf "$work"
    exit "$code"
}
bridges_before=$(bridges)
trap clean_up EXIT

get_podman() {
    [ "$(id -u)" -eq 0 ] || skip "podman needs root here"
    if ! command -v podman >/dev/null || ! command -v runc >/dev/null || ! command -v catatonit >/dev/null; then
        command -v apt-get >/dev/null || skip "there is no podman, and no apt-get to install it"
        # Debian starts podman's socket and timers when it is installed; nothing here needs them.
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends podman runc catatonit; } \
            >"$work/apt.log" 2>&1 || skip "podman cannot be installed: $(tail -n 1 "$work/apt.log")"
    fi
    runc=$(command -v runc)
    version=$(command podman --version | sed 's/[^0-9]*//')
    secret_flags=()
    if [ "$(printf '%s\n' 4.4 "$version" | sort --version-sort | head -n 1)" != 4.4 ]; then
        secret_flags=(--secrets-as-config-maps)
        echo "  podman $version: Secrets become ConfigMaps, as it mounts Secrets undecoded"
    fi
}

# Limits that every machine grants, and time enough for the drain.
configure_podman() {
    local grace_s=$1
    cat >"$work/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=8192:8192", "nproc=8192:8192"]
[engine]
stop_timeout = $grace_s
CONF
}

load_image() {
    local exports code=0 had_engine=yes
    deploy/ci/engine.sh env >/dev/null 2>&1 || had_engine=no
    exports=$(deploy/ci/engine.sh image) || code=$?
    [ "$code" -ne "$NO_TOOL" ] || skip "there is no container engine to build the image with"
    [ "$code" -eq 0 ] || fail "the image cannot be built"
    eval "$exports"
    "${DRAGOMAN_DOCKER:-docker}" save "${DRAGOMAN_IMAGE:?}" >"$work/image.tar"
    image=$(podman load --quiet --input "$work/image.tar" 2>"$work/load.log" | sed -n 's/^Loaded image[^:]*: *//p') \
        || skip "podman cannot keep images here: $(tail -n 1 "$work/load.log")"
    rm "$work/image.tar"
    [ $had_engine = yes ] || deploy/ci/engine.sh stop
    podman run --rm --publish 127.0.0.1::50051 "$image" --help >"$work/run.log" 2>&1 \
        || skip "podman cannot run containers with a network here: $(tail -n 1 "$work/run.log")"
    unset DRAGOMAN_IMAGE DRAGOMAN_DOCKER DRAGOMAN_BASE_IMAGE
}

free_port() {
    "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# The overlay as it is, with components on top, but for the image, and ports that only this machine reaches.
render() {
    local component
    rm -rf "$work/overlay"
    mkdir "$work/overlay"
    {
        printf 'resources:\n  - %s\n' "$(realpath --relative-to="$work/overlay" "$OVERLAY")"
        [ $# -eq 0 ] || echo "components:"
        for component in "$@"; do
            printf '  - %s\n' "$(realpath --relative-to="$work/overlay" "$COMPONENTS/$component")"
        done
        cat <<OVERLAY
images:
  - name: registry.example.com/dragoman
    newName: ${image%:*}
    newTag: ${image##*:}
patches:
  - target: {kind: Deployment}
    patch: |-
      - {op: add, path: /spec/template/spec/containers/0/ports/0/hostPort, value: $grpc_port}
      - {op: add, path: /spec/template/spec/containers/0/ports/0/hostIP, value: 127.0.0.1}
      - {op: add, path: /spec/template/spec/containers/0/ports/1/hostPort, value: $http_port}
      - {op: add, path: /spec/template/spec/containers/0/ports/1/hostIP, value: 127.0.0.1}
OVERLAY
    } >"$work/overlay/kustomization.yaml"
    "$kubectl" kustomize "$work/overlay" >"$work/rendered.yaml"
    "$python" deploy/ci/kube_play.py "${secret_flags[@]}" \
        --secret dragoman-callers "callers.toml=$work/secrets/callers.toml" \
        --secret dragoman-tls "tls.crt=$work/secrets/server.crt" "tls.key=$work/secrets/server.key" \
        <"$work/rendered.yaml" >"$work/play.yaml"
}

# A new key with its callers file, and a certificate for localhost.
make_secrets() {
    mkdir "$work/secrets"
    "$python" -c 'import sys
from pathlib import Path

from deploy.ci.servers import write_secrets

directory = Path(sys.argv[1])
trusted, key = write_secrets(directory)
(directory / "shop.key").write_text(key)
(directory / "ca.crt").write_bytes(trusted)' "$work/secrets"
}

play() {
    played=yes
    podman kube play "$work/play.yaml" >"$work/up.log" 2>&1 || fail "kube play: $(cat "$work/up.log")"
    container=$(podman ps --quiet --filter name=server)
}

take_down() {
    podman kube down "$work/play.yaml" >"$work/down.log" 2>&1 || fail "kube down: $(cat "$work/down.log")"
    played=no
    container=
    rm -f "$work/server.log"
    expect "containers left" "" "$(podman ps --all --quiet)"
}

translate() {
    "$python" -m dragoman_service translate --target "127.0.0.1:$grpc_port" --timeout 60 "$@"
}

wait_until_ready() {
    local deadline=$((SECONDS + READY_TIMEOUT_S))
    until [ "$(curl -s "http://127.0.0.1:$http_port/readyz" || true)" = ready ]; do
        [ "$(podman inspect --format '{{.State.Running}}' "$container")" = true ] || fail "the server has ended"
        [ $SECONDS -lt $deadline ] || fail "not ready within $READY_TIMEOUT_S s"
        sleep 0.2
    done
}

# Podman asks no gRPC probes, so this asks what the kubelet would: each probe's port and service.
check_probes() {
    "$python" - "$work/rendered.yaml" "127.0.0.1:$grpc_port" <<'PROBES' || fail "a probe of the manifest is not SERVING"
import sys

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

objects = yaml.safe_load_all(open(sys.argv[1], encoding="utf-8"))
deployment = next(thing for thing in objects if thing["kind"] == "Deployment")
server = deployment["spec"]["template"]["spec"]["containers"][0]
with grpc.insecure_channel(sys.argv[2]) as channel:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = health_pb2.HealthCheckRequest(service=server[name]["grpc"]["service"])
        status = health.Check(request, timeout=server[name]["timeoutSeconds"]).status
        print(f"  {name} {request.service or 'of the whole server'}: {health_pb2.HealthCheckResponse.ServingStatus.Name(status)}")
        if status != health_pb2.HealthCheckResponse.SERVING:
            sys.exit(1)
PROBES
}

expect() {
    local what=$1 wanted=$2 found=$3
    [ "$found" = "$wanted" ] || fail "$what: expected '$wanted', found '$found'"
    echo "  $what: $found"
}

# What the kernel says of the server's process, which is what the manifest asks for.
check_confinement() {
    local pid status
    pid=$(podman inspect --format '{{.State.Pid}}' "$container")
    status=$(cat "/proc/$pid/status")
    field() {
        sed -n "s/^$1:[[:space:]]*//p" <<<"$status"
    }
    expect "user ids" "65532 65532 65532 65532" "$(field Uid | tr '\t' ' ')"
    expect "group ids" "65532 65532 65532 65532" "$(field Gid | tr '\t' ' ')"
    expect "capabilities it could ever have" 0000000000000000 "$(field CapBnd)"
    expect "no new privileges" 1 "$(field NoNewPrivs)"
    expect "seccomp mode (2: filter)" 2 "$(field Seccomp)"
    expect "root file system" ro "$(awk '$5 == "/" {split($6, options, ","); print options[1]}' "/proc/$pid/mountinfo")"
    expect "decoding threads in the environment" 2 "$(tr '\0' '\n' <"/proc/$pid/environ" \
        | sed -n 's/^DRAGOMAN_SCHEDULING__NUM_WORKERS=//p')"
    expect "memory limit" $((1024 * 1024 * 1024)) "$(podman inspect --format '{{.HostConfig.Memory}}' "$container")"
    expect "Services in the environment" 0 "$(tr '\0' '\n' <"/proc/$pid/environ" | grep -c '^DRAGOMAN_SERVICE' || true)"
}

check_calls() {
    local answer
    answer=$(translate --api-key-file "$work/secrets/shop.key" "The weather is nice today.")
    expect "translation" "Heute ist das Wetter schön." "$answer"
    ! answer=$(translate "Hello." 2>&1) || fail "a caller without a key was answered: $answer"
    grep -q "API key" <<<"$answer" || fail "a caller without a key was rejected for another reason: $answer"
    echo "  a caller without a key: $answer"
}

in_flight() {
    curl -s "http://127.0.0.1:$http_port/metrics" | awk '/^dragoman_requests_in_flight\{.*"Translate"/ {print $2 + 0}'
}

# Take it down in the middle of a call: the call must be answered, and the server end by itself with 0. Podman 4.3 would
# take the network away while containers are still stopping, so the container is stopped first, as the kubelet does it.
check_drain() {
    local calling began_s
    "$python" -c 'for n in range(64): print("The weather is nice today, and we go to the station to meet our friends. " * 4)' \
        >"$work/texts"
    translate --api-key-file "$work/secrets/shop.key" <"$work/texts" >"$work/answers" 2>"$work/answers.log" &
    calling=$!
    until [ "$(in_flight)" = 1 ]; do
        kill -0 $calling 2>/dev/null || fail "the call ended before the server was taken down: $(cat "$work/answers.log")"
        sleep 0.05
    done
    began_s=$(date +%s.%N)
    podman stop "$container" >"$work/stop.log" 2>&1 || fail "stop: $(cat "$work/stop.log")"
    echo "  stopping took $("$python" -c "import time; print(f'{time.time() - $began_s:.1f}')") s"
    wait $calling || fail "a call was dropped: $(cat "$work/answers.log")"
    expect "answers of the call under way" 64 "$(grep -c . "$work/answers")"
    expect "exit code of the server" 0 "$(podman inspect --format '{{.State.ExitCode}}' "$container")"
    podman logs "$container" >"$work/server.log" 2>&1
    grep -q '"event": "draining"' "$work/server.log" || fail "the server did not drain"
}

# With components/tls, the pod encrypts and rejects plain text.
check_tls() {
    local answer
    answer=$("$python" -m dragoman_service translate --target "localhost:$grpc_port" --timeout 60 \
        --api-key-file "$work/secrets/shop.key" --ca-file "$work/secrets/ca.crt" "The weather is nice today.")
    expect "translation over TLS" "Heute ist das Wetter schön." "$answer"
    ! answer=$(translate --timeout 5 --api-key-file "$work/secrets/shop.key" "Hello." 2>&1) \
        || fail "plain text was answered: $answer"
    echo "  plain text: ${answer:0:100}"
}

get_podman
kubectl=$(deploy/ci/kubectl.sh) || skip "there is no kubectl"
configure_podman 60
load_image
grpc_port=$(free_port)
http_port=$(free_port)
make_secrets

render
play
wait_until_ready
check_probes
check_confinement
check_calls
check_drain
take_down

echo "  with components/tls:"
render tls
play
wait_until_ready
check_tls
take_down
echo "kube_play_test: good"
