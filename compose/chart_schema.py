"""The settings that the chart's values may name, from the classes that read them: `make chart-schema` writes them anew.

Rewrites two definitions of values.schema.json and leaves the rest. Invariant: what this writes is what the processes
take, less what the chart makes itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagewire.core.config import Setting, settings
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig

PATH = Path(__file__).parent / "chart" / "values.schema.json"
WIDTH = 118
KINDS = {bool: "boolean", int: "integer", float: "number"}

# Made of other values, of what Kubernetes tells a pod, and of secrets. Router processes are scaled as pods.
MADE_BY_THE_CHART = frozenset((
    "model", "cluster", "cluster_secret", "role", "host", "port", "advertise", "grpc_port", "metrics_port", "pod_id",
    "socket_port", "name",
    "redis_url", "redis_ca", "redis_cert", "redis_key", "tls_cert", "tls_key", "tls_ca", "tls_name", "edge_cert",
    "edge_key", "tls_client_ca", "api_keys", "operator_key", "pin_prefix", "shm_dir", "workers", "worker_port",
    "reuse_port",
))  # fmt: skip


def fresh(text: str) -> str:
    """Return the schema `text` with the settings as they are now."""
    schema = json.loads(text)
    for name, cls in (("routerSettings", RouterConfig), ("podSettings", PodConfig)):
        schema["definitions"][name] = _of(cls)
    return _written(schema) + "\n"


def _of(cls: type) -> dict[str, Any]:
    known = {each.name: _kind(each) for each in settings(cls) if each.name not in MADE_BY_THE_CHART}
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(known.items()))}


def _kind(each: Setting) -> dict[str, Any]:
    if each.choices:
        return {"enum": list(each.choices)}  # "on" and "off" need quotes in YAML: without, this says so
    if each.is_list:
        return {"type": ["array", "string"], "items": {"type": KINDS.get(each.kind, "string")}}
    kind = KINDS.get(each.kind, "string")
    return {"type": [kind, "string"] if each.parse else kind}


def _written(value: Any, indent: int = 0) -> str:
    """Return `value` as JSON, on one line what fits on one."""
    line = json.dumps(value)
    if len(line) + indent <= WIDTH or not isinstance(value, dict | list):
        return line
    pad, inner = " " * indent, indent + 2
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {_written(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(f"{pad}  {row}" for row in rows) + f"\n{pad}}}"
    return "[\n" + ",\n".join(f"{pad}  {_written(each, inner)}" for each in value) + f"\n{pad}]"


if __name__ == "__main__":
    PATH.write_text(fresh(PATH.read_text()))
