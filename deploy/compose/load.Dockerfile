# Locust with the Dragoman client and the users of loadtests/. The Compose file mounts the checkout's loadtests/ instead.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}
COPY pyproject.toml README.md LICENSE /build/
COPY proto/dragoman /build/proto/dragoman
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-compile '/build[locust]' && rm -rf /build
WORKDIR /opt/load
COPY loadtests /opt/load/loadtests
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/load PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["/opt/venv/bin/locust"]
