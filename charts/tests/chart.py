"""The charts under test: how they are rendered, and the values that every test goes through."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART, CRDS = ROOT / "charts/sluice", ROOT / "charts/sluice-crds"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sluice/cluster/bin"
NAMESPACE = "sluice-system"

# Every switch once, and the combinations that touch the same object.
COMBINATIONS = {
    "defaults": [],
    "namespaces": ["watchNamespaces={default,kube-public}"],
    "all namespaces": ["allNamespaces=true", "redis.copySecretTo={default}"],
    "no injection": ["allNamespaces=true", "injection.enabled=false"],
    "no redis": ["redis.enabled=false"],
    "sentinel": [
        "redis.enabled=false",
        r"redis.external.url=rediss+sentinel://a:26379\,b:26379/main",
        "redis.external.existingSecret=redis",
        "redis.external.caPem=-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n",
        "watchNamespaces={default}",
    ],
    "own redis secret": ["redis.auth.existingSecret=mine"],
    "gateway": ["gateway.enabled=true", "gateway.clientAuth.namespaces={default,kube-public}"],
    "gateway elsewhere": [
        "gateway.enabled=true",
        "gateway.namespace=default",
        "gateway.clientAuth.type=Keys",
        "gateway.clientAuth.keysSecret=keys",
        "gateway.tlsSecret=tls",
        "gateway.autoscaling.enabled=true",
        "gateway.service.type=LoadBalancer",
        "gateway.service.port=8080",
        "gateway.podLabels.app=support",
        "gateway.lameDuckSeconds=0",
        "gateway.allowFrom[0].namespaceSelector.matchLabels.team=a",
    ],
    "open gateway": ["gateway.enabled=true", "gateway.clientAuth.type=None"],
    "bare": [
        "controller.replicas=1",
        "controller.podDisruptionBudget.enabled=false",
        "networkPolicy.enabled=false",
        "tests.enabled=false",
    ],
    "everything set": [
        "fullnameOverride=reliability",
        f"image.digest=sha256:{'0' * 64}",
        "imagePullSecrets[0].name=pull",
        "controller.nodeSelector.disk=ssd",
        "controller.tolerations[0].operator=Exists",
        "controller.priorityClassName=system-cluster-critical",
        "controller.podAnnotations.a=b",
        "controller.extraEnv[0].name=A",
        "controller.extraEnv[0].value=b",
        "controller.serviceAccount.annotations.a=b",
        "controller.topologySpreadConstraints[0].maxSkew=1",
        "controller.topologySpreadConstraints[0].topologyKey=rack",
        "controller.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
        "redis.nodeSelector.disk=ssd",
        "redis.auth.password=0123456789abcdef",
        "telemetry.env.OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318",
        "telemetry.env.OTEL_TRACES_SAMPLER_ARG=0.1",
    ],
}
# Custom resources that a bare API server does not know.
MONITORING = ["monitoring.serviceMonitor.enabled=true", "monitoring.podMonitor.enabled=true", "monitoring.labels.release=prom"]


def program(name):
    found = CACHE / name
    if found.exists():
        return str(found)
    found = shutil.which(name)
    if not found:
        sys.exit(f"chart-test: {name} is missing: run e2e/cluster/build.sh helm, or put it on PATH")
    return found


HELM = program("helm")


def run(*command, stdin=None):
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def settings(values):
    return [word for value in values for word in ("--set", value)]


def helm_template(values, chart=CHART, release="sluice", more=()):
    """`helm template`, which knows no cluster."""
    return run(HELM, "template", release, str(chart), "--namespace", NAMESPACE, *settings(values), *more)


def documents(text):
    """Each object's text by (kind, namespace, name)."""
    found = {}
    for document in re.split(r"^---\n", text, flags=re.M):
        kind = re.search(r"^kind: (\S+)", document, re.M)
        if not kind:
            continue
        meta = re.search(r"^metadata:\n((?:  .*\n)+)", document, re.M).group(1)
        name = re.search(r"^  name: (\S+)", meta, re.M).group(1)
        namespace = re.search(r"^  namespace: (\S+)", meta, re.M)
        key = kind.group(1), namespace.group(1) if namespace else "", name
        assert key not in found, f"{key} is there twice"
        found[key] = document
    return found


class RenderingCase(unittest.TestCase):
    maxDiff = None

    def render(self, values, **more):
        """The objects that these values make."""
        done = helm_template(values, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return documents(done.stdout)
