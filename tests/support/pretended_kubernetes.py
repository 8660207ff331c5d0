"""An API server as far as Helm asks it while it renders: which kinds there are, and a few objects."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KINDS = {
    "v1": ("ConfigMap", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "keda.sh/v1alpha1": ("ScaledObject",),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule", "ServiceMonitor"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}
CONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: it, cluster: {{server: "{url}"}}}}]
contexts: [{{name: it, context: {{cluster: it, user: nobody}}}}]
users: [{{name: nobody, user: {{}}}}]
current-context: it
"""

OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "rel", "meta.helm.sh/release-namespace": "serving"},
}

Answers = dict[str, dict[str, Any]]


@contextlib.contextmanager
def kubernetes(folder: Path, replicas: Mapping[str, int]) -> Iterator[Path]:
    """Run one whose namespace `serving` has objects of the release `rel`, by "StatefulSet/NAME", of so many replicas.

    Yields a kubeconfig.
    """
    answers = _kinds()
    for each, number in replicas.items():
        kind, _, name = each.partition("/")
        answers[f"/apis/apps/v1/namespaces/serving/{_plural(kind)}/{name}"] = {
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, **OWNED}, "spec": {"replicas": number},
        }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = folder / "kubeconfig"
        config.write_text(CONFIG.format(url=f"http://127.0.0.1:{server.server_port}"))
        try:
            yield config
        finally:
            server.shutdown()


def _kinds() -> Answers:
    groups = {group: version for group, _, version in (each.partition("/") for each in KINDS) if version}
    answers: Answers = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}]}
                for group, version in groups.items()
            ],
        },
    }
    for version, kinds in KINDS.items():
        resources = [
            {"name": _plural(kind), "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get"]}
            for kind in kinds
        ]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        answers[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return answers


def _plural(kind: str) -> str:
    return f"{kind[:-1]}ies".lower() if kind.endswith("y") else f"{kind}s".lower()
