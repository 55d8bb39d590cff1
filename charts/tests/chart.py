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

# Every value once (test_values.py sees to it), and the combinations that touch the same object.
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
    "gateway": ["gateway.enabled=true", "gateway.clientAuth.namespaces={default,kube-public}", "gateway.replicas=3"],
    "gateway elsewhere": [
        "gateway.enabled=true",
        "gateway.namespace=default",
        "gateway.clientAuth.type=Keys",
        "gateway.clientAuth.keysSecret=keys",
        "gateway.tlsSecret=tls",
        "gateway.autoscaling.enabled=true",
        "gateway.autoscaling.minReplicas=3",
        "gateway.autoscaling.maxReplicas=30",
        "gateway.autoscaling.targetCPUPercent=50",
        "gateway.autoscaling.behavior.scaleDown.stabilizationWindowSeconds=60",
        "gateway.service.type=LoadBalancer",
        "gateway.service.port=8080",
        "gateway.service.annotations.a=b",
        "gateway.service.loadBalancerSourceRanges={10.0.0.0/8,192.168.0.0/16}",
        "gateway.service.loadBalancerClass=example.com/internal",
        "gateway.service.externalTrafficPolicy=Local",
        "gateway.serviceAccount.annotations.a=b",
        "gateway.lameDuckSeconds=0",
        "gateway.graceSeconds=60",
        "gateway.resources.limits.memory=2Gi",
        "gateway.podDisruptionBudget.enabled=false",
        "gateway.topologySpreadConstraints[0].maxSkew=1",
        "gateway.topologySpreadConstraints[0].topologyKey=rack",
        "gateway.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        "gateway.nodeSelector.disk=ssd",
        "gateway.tolerations[0].operator=Exists",
        "gateway.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=gpu",
        "gateway.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=DoesNotExist",
        "gateway.priorityClassName=system-cluster-critical",
        "gateway.podAnnotations.a=b",
        "gateway.podLabels.app=support",
        "gateway.extraEnv[0].name=A",
        "gateway.extraEnv[0].value=b",
        "gateway.extraVolumes[0].name=collector-ca",
        "gateway.extraVolumes[0].configMap.name=collector-ca",
        "gateway.extraVolumeMounts[0].name=collector-ca",
        "gateway.extraVolumeMounts[0].mountPath=/etc/collector",
        "gateway.allowFrom[0].namespaceSelector.matchLabels.team=a",
    ],
    "open gateway": ["gateway.enabled=true", "gateway.clientAuth.type=None"],
    "bare": [
        "controller.replicas=1",
        "controller.podDisruptionBudget.enabled=false",
        "networkPolicy.enabled=false",
        "tests.enabled=false",
    ],
    "what a platform may ask for": [
        "watchNamespaces={default}",
        "gateway.enabled=true",
        "runAsUser=0",
        "image.pullPolicy=Always",
        "redis.image.pullPolicy=Always",
        "imagePullSecrets[0].name=pull",
        "sidecar.imagePullSecrets={pull,mirror}",
        "sidecar.cpuLimit=500m",
        "sidecar.cpuRequest=50m",
        "sidecar.memoryRequest=64Mi",
        "sidecar.memoryLimit=512Mi",
    ],
    "everything set": [
        "fullnameOverride=reliability",
        "image.repository=registry.example/sluice",
        f"image.digest=sha256:{'0' * 64}",
        "watchNamespaces={default}",
        "injection.timeoutSeconds=7",
        "sidecar.graceSeconds=60",
        "controller.resources.limits.memory=1Gi",
        "controller.nodeSelector.disk=ssd",
        "controller.tolerations[0].operator=Exists",
        "controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=gpu",
        "controller.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=DoesNotExist",
        "controller.priorityClassName=system-cluster-critical",
        "controller.podAnnotations.a=b",
        "controller.podLabels.team=platform",
        "controller.extraEnv[0].name=A",
        "controller.extraEnv[0].value=b",
        "controller.extraVolumes[0].name=collector-ca",
        "controller.extraVolumes[0].configMap.name=collector-ca",
        "controller.extraVolumeMounts[0].name=collector-ca",
        "controller.extraVolumeMounts[0].mountPath=/etc/collector",
        "controller.serviceAccount.annotations.a=b",
        "controller.topologySpreadConstraints[0].maxSkew=1",
        "controller.topologySpreadConstraints[0].topologyKey=rack",
        "controller.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
        "redis.image.repository=registry.example/redis",
        f"redis.image.digest=sha256:{'1' * 64}",
        "redis.maxMemory=96mb",
        "redis.resources.limits.memory=128Mi",
        "redis.nodeSelector.disk=ssd",
        "redis.tolerations[0].operator=Exists",
        "redis.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=gpu",
        "redis.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=DoesNotExist",
        "redis.priorityClassName=system-cluster-critical",
        "redis.podAnnotations.a=b",
        "redis.auth.password=fedcba9876543210",
        "telemetry.env.OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318",
        "telemetry.env.OTEL_TRACES_SAMPLER_ARG=0.1",
        "telemetry.headersSecret=collector",
        "log.level=debug",
        "log.format=text",
    ],
    "tags": ["image.tag=dev", "redis.image.tag=8.0.1"],
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


def run(*command, stdin=None, env=None):
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=env)


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
