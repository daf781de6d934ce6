# Replacements for images of Docker Hub, with the same paths, users and entry points.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS base
COPY busybox /bin/busybox
RUN ln -s /bin/busybox /usr/bin/wget

FROM base AS envoy
COPY envoy /usr/local/bin/envoy
USER 101:101

FROM base AS prometheus
COPY prometheus /bin/prometheus
RUN install -d -o 65534 -g 65534 /prometheus
WORKDIR /prometheus
USER 65534:65534
ENTRYPOINT ["/bin/prometheus"]

FROM base AS alertmanager
COPY alertmanager /bin/alertmanager
COPY alertmanager-templates /usr/share/prometheus/alertmanager
RUN install -d -o 65534 -g 65534 /alertmanager
WORKDIR /alertmanager
USER 65534:65534
ENTRYPOINT ["/bin/alertmanager"]
