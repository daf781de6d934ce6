#!/usr/bin/env bash
# Replace the replicas one by one with new ones, with the image and the settings that the compose file has now:
#
#   docker compose build dragoman && deploy/compose/roll.sh [FLAG ...]
#
# FLAGs are those of `docker compose`, such as -f FILE. Each replica drains and is removed; its successor must be
# healthy before the next one is stopped, so with two replicas or more one always answers. `docker compose up` alone
# would replace all of them at once.
#
#   COMPOSE           the command to use instead of `docker compose`
#   DRAGOMAN_DOCKER   the client to use instead of `docker`
set -euo pipefail

readonly DRAIN_S=40   # stop_grace_period
readonly NOTICED_S=5  # Envoy queries DNS every 2 s, and the health of new replicas every second
readonly HEALTHY_S=180

read -ra compose <<<"${COMPOSE:-docker compose}"
compose+=("$@")
docker=${DRAGOMAN_DOCKER:-docker}

mapfile -t replicas < <("${compose[@]}" ps --quiet dragoman)
if [ "${#replicas[@]}" -lt 2 ]; then
    echo "roll: ${#replicas[@]} replicas run; start two or more, or calls would fail meanwhile" >&2
    exit 1
fi
for replica in "${replicas[@]}"; do
    "$docker" stop --time "$DRAIN_S" "$replica" >/dev/null
    "$docker" rm "$replica" >/dev/null
    "${compose[@]}" up --detach --no-deps --no-recreate --no-build --scale "dragoman=${#replicas[@]}" \
        --wait --wait-timeout "$HEALTHY_S" dragoman
    sleep "$NOTICED_S"
done
