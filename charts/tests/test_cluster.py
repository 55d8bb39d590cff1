"""What depends on what a cluster has already: Helm asks it while it renders, and here a stand-in answers."""

import base64
import re
import unittest

from api_server import Cluster, thing
from chart import CHART, HELM, NAMESPACE, documents, run, settings

OF_HELM = {"app.kubernetes.io/managed-by": "Helm"}


def own(namespace=NAMESPACE, release="sluice"):
    return {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace}


def role(release, namespace):
    labels = {"app.kubernetes.io/name": "sluice", "app.kubernetes.io/instance": release}
    name = "rbac.authorization.k8s.io/v1/ClusterRole", f"{release}-controller"
    return thing(*name, labels=labels | OF_HELM, annotations=own(namespace, release))


class WithCluster(unittest.TestCase):
    def render(self, cluster, values, upgrade=False):
        command = [HELM, "template", "sluice", str(CHART), "--namespace", NAMESPACE]
        # The stand-in has no schemas.
        command += ["--dry-run=server", "--disable-openapi-validation", *(["--is-upgrade"] if upgrade else [])]
        with cluster.served() as env:
            return run(*command, *settings(values), env=env)

    def rendered(self, cluster, values, **more):
        done = self.render(cluster, values, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return documents(done.stdout)

    def refused(self, cluster, values, *said, **more):
        done = self.render(cluster, values, **more)
        self.assertNotEqual(done.returncode, 0)
        for part in said:
            self.assertIn(part, done.stderr)

    def test_namespaces_have_to_be_there(self):
        team = thing("v1/Namespace", "team")
        gateway = ["gateway.enabled=true", "gateway.namespace=edge"]
        for upgrade in False, True:
            for value, values in (
                ("watchNamespaces", ["watchNamespaces={team,edge}"]),
                ("redis.copySecretTo", ["allNamespaces=true", "redis.copySecretTo={edge}"]),
                ("gateway.namespace", gateway),
            ):
                said = f"{value} names edge", "kubectl create namespace edge"
                self.refused(Cluster(team), values, *said, upgrade=upgrade)
            # That of the release is made after this.
            there = Cluster(team, thing("v1/Namespace", "edge"))
            self.rendered(there, [f"watchNamespaces={{team,edge,{NAMESPACE}}}", *gateway], upgrade=upgrade)

    def test_the_custom_resources_have_to_be_there(self):
        self.refused(Cluster(resources=False), [], "install the chart sluice-crds first", f"--namespace {NAMESPACE}")
        # They may come later than an upgrade: nobody is to lose a running controller over that.
        self.rendered(Cluster(resources=False), [], upgrade=True)

    def test_a_cluster_has_one_release(self):
        elsewhere = role("sluice", "other"), "as the release sluice in the namespace other"
        of_another_name = role("prod", NAMESPACE), f"as the release prod in the namespace {NAMESPACE}"
        for there, said in elsewhere, of_another_name:
            self.refused(Cluster(there), [], said, there["metadata"]["name"])
        other_chart = thing("rbac.authorization.k8s.io/v1/ClusterRole", "other", labels={"app.kubernetes.io/name": "other"})
        plain = thing("rbac.authorization.k8s.io/v1/ClusterRole", "view")
        self.rendered(Cluster(role("sluice", NAMESPACE), other_chart, plain), [])

    def test_an_autoscalers_number_survives_an_upgrade(self):
        values = ["gateway.enabled=true", "gateway.autoscaling.enabled=true"]
        for spec, expected in ({"replicas": 7}, ["7"]), ({"replicas": 0}, ["0"]), ({}, []), (None, []):
            live = [] if spec is None else [self.deployment(spec)]
            objects = self.rendered(Cluster(*live), values, upgrade=True)
            text = objects["Deployment", NAMESPACE, "sluice-gateway"]
            self.assertEqual(re.findall(r"^  replicas: (.*)$", text, re.M), expected)
        plain = self.rendered(Cluster(self.deployment({"replicas": 7})), ["gateway.enabled=true"], upgrade=True)
        self.assertIn("\n  replicas: 2\n", plain["Deployment", NAMESPACE, "sluice-gateway"])

    def deployment(self, spec):
        return thing("apps/v1/Deployment", "sluice-gateway", NAMESPACE, OF_HELM, own(), spec=spec)

    def test_the_password_is_kept(self):
        text = {name: base64.b64encode(value).decode() for name, value in (("username", b"sluice"), ("password", b"kept"))}
        secret = thing("v1/Secret", "sluice-redis", NAMESPACE, OF_HELM, own(), data=text)
        objects = self.rendered(Cluster(secret, thing("v1/Namespace", "a")), ["watchNamespaces={a}"], upgrade=True)
        for namespace in NAMESPACE, "a":
            self.assertIn(f"password: {text['password']}", objects["Secret", namespace, "sluice-redis"])
