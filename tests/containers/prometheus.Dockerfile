# Prometheus of Debian, where no registry has one; wget is what its health check asks with.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65534 -g 65534 /prometheus
ENTRYPOINT ["prometheus"]
