#!/usr/bin/env bash
# Checks and measures a GPU: check.sh PYTHON DEVICE MODE [DATA]. DEVICE cpu runs the same without a GPU, MODE short is a
# quick check of the bundled model, DATA has the test sets. A stage that has finished leaves its output in STAGE.log and
# is not repeated; remove the file to repeat it. Figures are reported, not judged.
set -euo pipefail

python=$1 device=$2 mode=$3
output=$PWD/build/gpu/$device-$mode
models=$output/models
model=base
bench=(--mode "$mode" --repetitions 3)
load=(--mode short --repetitions 1)
soak_s=300
sets=()
if [ "$mode" = short ]; then model=shipped bench=(--mode short --cases '*-1' --repetitions 1) soak_s=120; fi
if [ "$device" = cuda ]; then load+=(--settings 1x1,b64,w2); fi
if [ -n "${4-}" ]; then sets=(--data "$4"); fi

# The loader does not search the CUDA libraries of Python packages.
libraries=$("$python" -c 'import glob, sys; print(*(p for root in sys.path for p in glob.glob(f"{root}/nvidia/*/lib")), sep=":")')
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DRAGOMAN_RUNTIME__DEVICE=$device
failed=0

stage() { # NAME SECONDS ARGUMENTS of Python
    local log=$output/$1.log
    if [ -e "$log" ]; then return; fi
    echo "$1 ..."
    echo "python ${*:3}" >"$log.part"
    if timeout --kill-after=15 "$2" "$python" "${@:3}" >>"$log.part" 2>&1; then
        mv "$log.part" "$log"
    else
        echo "$1 failed with $?; its output is $log.part" >&2
        failed=1
    fi
}

mkdir -p "$output"
if [ "$device" = cuda ]; then nvidia-smi >"$output/device.log"; fi
for name in $(printf '%s\n' "$model" shipped | sort -u); do
    stage "prepare-$name" 240 -m loadtests benchmarks prepare --model "$name" --gpu "$device" --output "$output"
done
stage tests 120 -m pytest -m gpu -q -rs tests/parity tests/unit/runtimes
common=(--gpu "$device" --files "$models/$model" "${sets[@]}")
stage bench 180 -m loadtests benchmarks bench "${common[@]}" --output "$output/bench" --models "$model" "${bench[@]}"
stage load 240 -m loadtests benchmarks load "${common[@]}" --output "$output/load" --model "$model" "${load[@]}"
stage soak $((soak_s + 120)) -m loadtests stress soak --model-dir "$models/shipped/served" --duration "$soak_s" \
    --output "$output/soak"

for log in "$output"/*.log; do
    printf '## %s\n\n```text\n%s\n```\n\n' "$(basename "$log" .log)" "$(<"$log")"
done >"$output/report.md"
echo "the report is $output/report.md"
exit "$failed"
