#!/bin/sh
# Runs `pagewire` in a container. A pod listens on the address that its peers dial, and a container learns its own only
# when it starts; where PAGEWIRE_HOST is set (Kubernetes tells a pod its address), that is it.
set -eu
case "${1:-}" in
    prefill | decode | colocated)
        PAGEWIRE_HOST=${PAGEWIRE_HOST:-$(hostname -i | cut -d ' ' -f 1)}
        export PAGEWIRE_HOST
        ;;
esac
exec pagewire "$@"
