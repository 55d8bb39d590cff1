"""What the chart refuses, and what it says then."""

import unittest

from chart import helm_template

REFUSED = {
    "a value that there is not": (["controller.replicaCount=3"], "'/controller'", "'replicaCount' not allowed"),
    "one at the root": (["watchNamespace=a"], "'watchNamespace' not allowed"),
    "deep inside": (["redis.external.sentinel=a"], "'/redis/external'", "'sentinel' not allowed"),
    "no replica": (["controller.replicas=0"], "'/controller/replicas'", "minimum"),
    "a string for a list": (["watchNamespaces=a"], "'/watchNamespaces'", "want array"),
    "a namespace's name": (["watchNamespaces={Team_A}"], "'/watchNamespaces/0'", "does not match pattern"),
    "a namespace twice": (["watchNamespaces={a,a}"], "'/watchNamespaces'", "equal"),
    "how clients are known": (["gateway.clientAuth.type=none"], "'/gateway/clientAuth/type'", "'Tokens', 'Keys', 'None'"),
    "a short password": (["redis.auth.password=short"], "'/redis/auth/password'", "does not match pattern"),
    "another's variable": (["telemetry.env.PATH=/"], "PATH", "does not match pattern"),
    "a webhook that is waited for too long": (["injection.timeoutSeconds=31"], "'/injection/timeoutSeconds'", "maximum"),
    "a digest": (["image.digest=latest"], "'/image/digest'"),
    "both kinds of namespaces": (["allNamespaces=true", "watchNamespaces={a}"], "exclude each other"),
    "two kinds of Redis": (["redis.external.url=redis://a"], "set redis.enabled=false"),
    "a password in the URL": (
        ["redis.enabled=false", "redis.external.url=redis://:secret@a"],
        "redis.external.existingSecret",
    ),
    "another URL": (["redis.enabled=false", "redis.external.url=http://a"], "write redis://"),
    "two passwords": (
        ["redis.auth.password=0123456789abcdef", "redis.auth.existingSecret=a"],
        "redis.auth.password and redis.auth.existingSecret",
    ),
    "a copy of nothing": (["redis.auth.existingSecret=a", "redis.copySecretTo={b}"], "copy yours"),
    "keys without a Secret": (
        ["gateway.enabled=true", "gateway.clientAuth.type=Keys"],
        "gateway.clientAuth.keysSecret",
    ),
    "namespaces of no tokens": (["gateway.clientAuth.type=None", "gateway.clientAuth.namespaces={a}"], "set it to Tokens"),
    "a label of the chart's own": (["controller.podLabels.helm\\.sh/chart=a"], "'/controller/podLabels/helm.sh~1chart'"),
    "one by which agents are known": (["gateway.podLabels.sluice\\.dev/agent=a"], "'/gateway/podLabels/sluice.dev~1agent'"),
    "a variable of the chart's own": (
        ["controller.extraEnv[0].name=SLUICE_SIDECAR_RUN_AS_USER"],
        "controller.extraEnv sets SLUICE_SIDECAR_RUN_AS_USER, which the chart sets itself",
    ),
    "one of the gateway's": (
        ["gateway.enabled=true", "gateway.extraEnv[0].name=SLUICE_CLIENT_AUTH"],
        "gateway.extraEnv sets SLUICE_CLIENT_AUTH, which the chart sets itself",
    ),
    "one that is a value": (
        ["controller.extraEnv[0].name=OTEL_SERVICE_NAME", "telemetry.env.OTEL_SERVICE_NAME=a"],
        "controller.extraEnv sets OTEL_SERVICE_NAME",
    ),
    "a variable twice": (["controller.extraEnv[0].name=A", "controller.extraEnv[1].name=A"], "sets A twice"),
    "headers for all to read": (
        ["telemetry.headersSecret=a", "telemetry.env.OTEL_EXPORTER_OTLP_HEADERS=b=c"],
        "telemetry.headersSecret and telemetry.env.OTEL_EXPORTER_OTLP_HEADERS",
    ),
    "who may reach no balancer": (["gateway.service.loadBalancerSourceRanges={10.0.0.0/8}"], "gateway.service.type is ClusterIP"),
    "whose balancer": (["gateway.service.type=NodePort", "gateway.service.loadBalancerClass=a"], "type is NodePort"),
    "addresses that stay inside": (["gateway.service.externalTrafficPolicy=Local"], "gateway.service.type is ClusterIP"),
    "an address for a range": (["gateway.service.loadBalancerSourceRanges={10.0.0.1}"], "loadBalancerSourceRanges/0'"),
    "root by another way": (["runAsUser=-1"], "'/runAsUser'", "minimum"),
    "no limit at all": (["sidecar.cpuLimit=0"], "'/sidecar/cpuLimit'"),
    "a secret with its value": (["sidecar.imagePullSecrets[0].name=a"], "'/sidecar/imagePullSecrets/0'", "want string"),
    "more than the most": (
        ["gateway.enabled=true", "gateway.autoscaling.enabled=true", "gateway.autoscaling.minReplicas=20"],
        "minReplicas 20 is more than maxReplicas 10",
    ),
}


class Refusals(unittest.TestCase):
    def test_what_is_wrong_is_refused_with_where_and_why(self):
        for name, (values, *said) in REFUSED.items():
            with self.subTest(name):
                done = helm_template(values)
                self.assertNotEqual(done.returncode, 0)
                for part in said:
                    self.assertIn(part, done.stderr)
