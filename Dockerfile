# The server with the bundled models. `make image` builds it; without make:
#
#   docker build --build-arg VARIANT=cpu|gpu --tag dragoman .
#   docker run --publish 127.0.0.1:50051:50051 --publish 127.0.0.1:8080:8080 --read-only --cap-drop ALL \
#     --stop-timeout 40 --env DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED=true dragoman
#
# Ports: 50051 gRPC, 8080 the HTTP API with playground and vendor APIs, 9464 metrics and probes. The server listens on all
# addresses of the container, so it starts only if its settings define who may call: mount keys and certificates
# (docs/guides/security.md), or admit every client as above.
#
# The gpu variant contains ONNX Runtime for CUDA, NVIDIA's libraries from the package index, and the bundled models in fp16
# in addition to int8. The host needs a driver for CUDA 13 and the NVIDIA container toolkit (`docker run --gpus all`).
#
# The root file system may be read-only: only uploaded documents are written, to a mounted directory. The image needs no
# shell at run time.

ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG VARIANT=cpu

FROM ${BASE_IMAGE} AS tools
WORKDIR /build
COPY deploy/image/tools.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --require-hashes --only-binary :all: --requirement tools.lock

# Dependencies as pinned in the lock file: a large layer that rarely changes.
FROM tools AS dependencies
ARG VARIANT
COPY deploy/image/${VARIANT}.lock ./runtime.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv --without-pip /opt/venv \
    && /opt/tools/bin/pip --python /opt/venv/bin/python install --no-compile --no-deps --require-hashes \
        --only-binary :all: --requirement runtime.lock
COPY pyproject.toml README.md LICENSE ./
RUN mkdir -p /usr/share/sbom \
    && /opt/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
        --output-file /usr/share/sbom/dragoman.cdx.json /opt/venv/bin/python
# Removes files that only developers of the dependencies use. Compiles bytecode into a separate tree, also of the standard
# library: the official base contains none, and a read-only container would compile it at every start. Hashes validate
# the bytecode, as a cached build does not preserve file times.
RUN find /opt/venv/lib -depth \
        \( -type d \( -name tests -o -path '*/numpy/f2py' -o -path '*/numpy/*/include' -o -path '*/nvidia/*/include' -o -path '*/onnxruntime/datasets' \
            -o -path '*/onnxruntime/quantization' -o -path '*/onnxruntime/tools' -o -path '*/onnxruntime/transformers' \) \
        -o -type f \( -name '*.a' -o -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' \) \) \
        -exec rm -rf {} + \
    && PYTHONPYCACHEPREFIX=/opt/pycache /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash \
        -x '/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|distutils|pydoc_data|dist-packages|site-packages)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && PYTHONPYCACHEPREFIX=/opt/pycache /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/venv/lib

# The native engine. The compiler stays in this stage and is installed unless the base contains one.
FROM ${BASE_IMAGE} AS native
# hadolint ignore=DL3008
RUN mkdir /wheels \
    && if ! command -v c++; then \
        apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; fi
COPY --from=tools /opt/tools /opt/tools
COPY service/native /build/native
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /build/native

# The service: a small layer that changes often.
FROM dependencies AS application
COPY --from=native /wheels wheels
COPY proto/dragoman proto/dragoman
COPY service/dragoman_service service/dragoman_service
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/tools/bin/pip install --no-deps --no-compile --target /opt/dragoman wheels/*.whl \
    && PYTHONPYCACHEPREFIX=/opt/pycache /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/dragoman

# The bundled models. GPUs do not run int8, so the gpu variant adds fp16 to each bundle.
FROM ${BASE_IMAGE} AS models-cpu
COPY deploy/models/dragoman_models /models

FROM tools AS models-gpu
COPY deploy/image/convert.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv --without-pip /opt/convert \
    && /opt/tools/bin/pip --python /opt/convert/bin/python install --no-compile --no-deps --require-hashes \
        --only-binary :all: --requirement convert.lock
COPY service/dragoman_service dragoman_service
COPY export/dragoman_export dragoman_export
COPY deploy/models/dragoman_models models
RUN for bundle in models/*/*; do \
        /opt/convert/bin/python -m dragoman_export convert --bundle "$bundle" --output "/$bundle" || exit 1; \
    done

# hadolint ignore=DL3006
FROM models-${VARIANT} AS models

FROM ${BASE_IMAGE} AS runtime
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=dependencies /opt/pycache /opt/pycache
COPY --from=dependencies /usr/share/sbom /usr/share/sbom
COPY --from=models /models /models
COPY --from=application /opt/dragoman /opt/dragoman
COPY --from=application /opt/pycache/opt/dragoman /opt/pycache/opt/dragoman

ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/dragoman \
    PYTHONSAFEPATH=1 \
    PYTHONPYCACHEPREFIX=/opt/pycache \
    PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    DRAGOMAN_MODELS__DIRECTORY=/models \
    DRAGOMAN_GRPC__HOST=:: \
    DRAGOMAN_GRPC__GOOGLE_TRANSLATION=true \
    DRAGOMAN_HTTP__HOST=:: \
    DRAGOMAN_HTTP__PORT=8080 \
    DRAGOMAN_HTTP__API=true \
    DRAGOMAN_HTTP__PLAYGROUND=true \
    DRAGOMAN_HTTP__METRICS_PORT=9464
WORKDIR /opt/dragoman
USER 65532:65532
EXPOSE 50051 8080 9464

# The first check runs after one interval, so a short interval reports healthy sooner. The check imports no packages (-S), so
# that it takes 0.04 s of a core. It uses no proxy, although Docker puts proxy variables into containers.
HEALTHCHECK --interval=3s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/venv/bin/python", "-I", "-S", "-c", "import os, urllib.request as http; \
http.build_opener(http.ProxyHandler({})).open( \
'http://127.0.0.1:' + os.environ['DRAGOMAN_HTTP__METRICS_PORT'] + '/readyz', timeout=4)"]

ENTRYPOINT ["/opt/venv/bin/python", "-m", "dragoman_service"]
CMD ["serve"]

ARG VARIANT
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="dragoman" \
    org.opencontainers.image.description="Neural machine translation served over gRPC and HTTP (${VARIANT})" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.licenses="Apache-2.0"
