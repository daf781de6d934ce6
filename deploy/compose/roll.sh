#!/usr/bin/env bash
# Replace the replicas one by one, with the current image and settings of the compose file:
#
#   docker compose build dragoman && deploy/compose/roll.sh [FLAG ...]
#
# FLAGs go to `docker compose`, such as -f FILE. Each replica drains and is removed; its successor must be healthy before
# the next one stops, so with at least two replicas one always answers. `docker compose up` would replace all at once.
#
#   COMPOSE           the command to use instead of `docker compose`
#   DRAGOMAN_DOCKER   the client to use instead of `docker`
set -euo pipefail

readonly DRAIN_S=40   # stop_grace_period
readonly DISCOVERY_S=5  # Envoy queries DNS every 2 s, and the health of new replicas every second
readonly HEALTHY_S=180

read -ra compose <<<"${COMPOSE:-docker compose}"
compose+=("$@")
docker=${DRAGOMAN_DOCKER:-docker}

mapfile -t replicas < <("${compose[@]}" ps --quiet dragoman)
if [ "${#replicas[@]}" -lt 2 ]; then
    echo "roll: ${#replicas[@]} replicas run, at least 2 are needed: docker compose up -d --scale dragoman=2" >&2
    exit 1
fi
for replica in "${replicas[@]}"; do
    "$docker" stop --time "$DRAIN_S" "$replica" >/dev/null
    "$docker" rm "$replica" >/dev/null
    "${compose[@]}" up --detach --no-deps --no-recreate --no-build --scale "dragoman=${#replicas[@]}" \
        --wait --wait-timeout "$HEALTHY_S" dragoman
    sleep "$DISCOVERY_S"
done
