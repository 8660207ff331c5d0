"""Where a service's traces go: as it was told, or as OpenTelemetry's own variables say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from pagewire.core.config import ConfigError
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.tracing import endpoint_of

Config = TypeVar("Config", RouterConfig, PodConfig)


def with_collector(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the settings with the collector's URL, "" for none; raises as `collector_of` does."""
    endpoint = collector_of(config.otlp_endpoint, environ, is_encrypted=bool(config.tls_ca))
    return dataclasses.replace(config, otlp_endpoint=endpoint)


def collector_of(told: str, environ: Mapping[str, str], *, is_encrypted: bool) -> str:
    """Return the collector's URL, "" for none; raises ConfigError on what it cannot be spoken to."""
    try:
        return endpoint_of(told, environ, is_encrypted=is_encrypted)
    except ValueError as error:
        raise ConfigError(str(error)) from error
