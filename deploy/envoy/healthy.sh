#!/usr/bin/env bash
# Health check of Envoy's container: succeeds if Envoy is ready and at least one replica is healthy for gRPC and for HTTP.
# Needs only bash, as Envoy's image has neither curl nor wget.
set -euo pipefail

filter='^cluster\.dragoman.*\.membership_healthy$'
num_healthy=0
exec 3<>/dev/tcp/127.0.0.1/9901
printf 'GET /stats/prometheus?filter=%s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n' "$filter" >&3
while read -r line <&3; do
    if [[ $line =~ ^envoy_cluster_membership_healthy\{.*\}\ [1-9] ]]; then
        num_healthy=$((num_healthy + 1))
    fi
done
[ "$num_healthy" -eq 2 ] && exit 0
echo "no healthy replica" >&2
exit 1
