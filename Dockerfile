# The server with the model that ships. `make image` builds it; by hand:
#
#   docker build --build-arg VARIANT=cpu|gpu --tag dragoman .
#   docker run --publish 127.0.0.1:50051:50051 --read-only --cap-drop ALL --stop-timeout 40 \
#     --env DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED=true dragoman
#
# It listens on every address of its container, and therefore does not start before its settings say who may call: mount
# keys and certificates and name them (docs/guides/security.md), or admit every client, as above.
#
# The gpu variant carries ONNX Runtime for CUDA and NVIDIA's libraries from the package index; the host needs a driver
# for CUDA 13 and the NVIDIA container toolkit (`docker run --gpus all`).
#
# Nothing is written at run time (except uploaded documents, to a mounted directory), so the root may be read-only, and nothing needs a shell.

ARG BASE_IMAGE=python:3.11-slim-bookworm

# Dependencies, exactly those of the lock file: changes rarely, is most of the image.
FROM ${BASE_IMAGE} AS dependencies
WORKDIR /build
COPY deploy/image/tools.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --require-hashes --only-binary :all: --requirement tools.lock
ARG VARIANT=cpu
COPY deploy/image/${VARIANT}.lock ./runtime.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv --without-pip /opt/venv \
    && /opt/tools/bin/pip --python /opt/venv/bin/python install --no-compile --no-deps --require-hashes \
        --only-binary :all: --requirement runtime.lock
COPY pyproject.toml README.md LICENSE ./
RUN mkdir -p /usr/share/sbom \
    && /opt/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
        --output-file /usr/share/sbom/dragoman.cdx.json /opt/venv/bin/python
# What only developers of the dependencies use is left out. Bytecode is in a tree of its own, that of the standard
# library too: the official base has none, and as nothing can be written at run time, every start would compile it all
# again. It is compared with the hash of its source, as a build from cache does not keep times of files.
RUN find /opt/venv/lib -depth \
        \( -type d \( -name tests -o -path '*/numpy/f2py' -o -path '*/numpy/*/include' -o -path '*/nvidia/*/include' -o -path '*/onnxruntime/datasets' \
            -o -path '*/onnxruntime/quantization' -o -path '*/onnxruntime/tools' -o -path '*/onnxruntime/transformers' \) \
        -o -type f \( -name '*.a' -o -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' \) \) \
        -exec rm -rf {} + \
    && PYTHONPYCACHEPREFIX=/opt/pycache /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash \
        -x '/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|distutils|pydoc_data|dist-packages|site-packages)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && PYTHONPYCACHEPREFIX=/opt/pycache /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/venv/lib

# The native decoder, which is for x86-64. The compiler stays in this stage; a base that has one needs no package.
FROM ${BASE_IMAGE} AS native
# hadolint ignore=DL3008
RUN mkdir /wheels \
    && if [ "$(uname -m)" = x86_64 ] && ! command -v c++; then \
        apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; fi
COPY --from=dependencies /opt/tools /opt/tools
COPY service/native /build/native
RUN if [ "$(uname -m)" = x86_64 ]; then \
        /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /build/native; fi

# The service: changes often, is small.
FROM dependencies AS application
COPY --from=native /wheels wheels
COPY proto/dragoman proto/dragoman
COPY service/dragoman_service service/dragoman_service
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/tools/bin/pip install --no-deps --no-compile --target /opt/dragoman wheels/*.whl \
    && PYTHONPYCACHEPREFIX=/opt/pycache /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/dragoman

FROM ${BASE_IMAGE} AS runtime
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=dependencies /opt/pycache /opt/pycache
COPY --from=dependencies /usr/share/sbom /usr/share/sbom
COPY deploy/models/dragoman_models /models
COPY --from=application /opt/dragoman /opt/dragoman
COPY --from=application /opt/pycache/opt/dragoman /opt/pycache/opt/dragoman

ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/dragoman \
    PYTHONSAFEPATH=1 \
    PYTHONPYCACHEPREFIX=/opt/pycache \
    PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    DRAGOMAN_MODELS__DIRECTORY=/models \
    DRAGOMAN_GRPC__HOST=0.0.0.0 \
    DRAGOMAN_HTTP__HOST=0.0.0.0
WORKDIR /opt/dragoman
USER 65532:65532
EXPOSE 50051 9464

# The first check comes after one interval, so a shorter one makes it healthy sooner; each takes 0.15 s of a core.
HEALTHCHECK --interval=3s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/venv/bin/python", "-m", "dragoman_service", "probe"]

ENTRYPOINT ["/opt/venv/bin/python", "-m", "dragoman_service"]
CMD ["serve"]

ARG VARIANT=cpu
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="dragoman" \
    org.opencontainers.image.description="Neural machine translation served over gRPC (${VARIANT})" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.licenses="Apache-2.0"
