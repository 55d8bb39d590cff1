"""What the charts render."""

import pathlib
import re
import shutil
import tempfile

from chart import CHART, COMBINATIONS, CRDS, HELM, MONITORING, NAMESPACE, ROOT, RenderingCase, run

CLUSTER_WIDE = "ClusterRole"


class Rendering(RenderingCase):
    def test_lint(self):
        for chart in CHART, CRDS:
            done = run(HELM, "lint", "--strict", str(chart))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_defaults_are_these_objects_and_no_others(self):
        own = [
            ("Deployment", "sluice-controller"),
            ("NetworkPolicy", "sluice-controller"),
            ("PodDisruptionBudget", "sluice-controller"),
            ("Role", "sluice-controller"),
            ("RoleBinding", "sluice-controller"),
            ("Service", "sluice-controller"),
            ("ServiceAccount", "sluice-controller"),
            ("Deployment", "sluice-redis"),
            ("NetworkPolicy", "sluice-redis"),
            ("Secret", "sluice-redis"),
            ("Service", "sluice-redis"),
            ("Pod", "sluice-test-agent"),
        ]
        expected = {(kind, NAMESPACE, name) for kind, name in own}
        expected |= {(kind, "", "sluice-controller") for kind in ("ClusterRole", "ClusterRoleBinding")}
        self.assertEqual(set(self.render([])), expected)

    def test_secrets_are_readable_only_where_the_values_say(self):
        def readers(values):
            rights = {key: text for key, text in self.render(values).items() if key[0] in ("Role", CLUSTER_WIDE)}
            self.assertFalse([key for key, text in rights.items() if "*" in re.sub("#.*", "", text)], "a wildcard")
            rule = re.compile(r"resources: \[secrets\]\n  verbs: \[get, list, watch\]")
            return {key[:2] for key, text in rights.items() if rule.search(text)}

        self.assertEqual(readers([]), set())
        self.assertEqual(readers(["watchNamespaces={a,b}"]), {("Role", "a"), ("Role", "b")})
        self.assertEqual(readers(["gateway.enabled=true"]), {("Role", NAMESPACE)})
        self.assertEqual(readers(["allNamespaces=true"]), {(CLUSTER_WIDE, "")})

    def test_the_controller_is_told_the_namespaces_or_nothing(self):
        def told(values):
            text = self.render(values)["Deployment", NAMESPACE, "sluice-controller"]
            names = "SLUICE_SECRET_NAMESPACES|SLUICE_ALL_SECRETS|SLUICE_WEBHOOK_CONFIGURATION"
            return dict(re.findall(rf'name: ({names})\n +value: "?([^"\n]*)', text))

        # An empty list would be read as the namespace "", which is all of them.
        self.assertEqual(told([]), {})
        webhook = {"SLUICE_WEBHOOK_CONFIGURATION": "sluice-injector"}
        self.assertEqual(told(["watchNamespaces={b,a}"]), {"SLUICE_SECRET_NAMESPACES": "a,b"} | webhook)
        self.assertEqual(told(["allNamespaces=true"]), {"SLUICE_ALL_SECRETS": "true"} | webhook)
        self.assertEqual(told(["allNamespaces=true", "injection.enabled=false"]), {"SLUICE_ALL_SECRETS": "true"})

    def test_the_webhook_asks_about_who_asks_and_leaves_the_authority_to_the_controller(self):
        text = self.render(["watchNamespaces={a}"])["MutatingWebhookConfiguration", "", "sluice-injector"]
        self.assertNotIn("caBundle:", text)
        self.assertEqual(re.findall(r"^- name: (\S+)", text, re.M), ["inject.sluice.dev", "inject-pod.sluice.dev"])
        self.assertEqual(text.count("failurePolicy: Ignore"), 2)
        self.assertEqual(text.count(f"operator: NotIn, values: [kube-system, {NAMESPACE}]"), 2)
        self.assertEqual(text.count('key: kubernetes.io/metadata.name, operator: In, values: ["a"]'), 2)
        # What the controller takes for yes and for no.
        judge = (ROOT / "crates/sluice-controller/src/injection/pod.rs").read_text()
        self.assertIn('"enabled" | "true"', judge)
        self.assertIn('"disabled" | "false"', judge)
        yes, no = '["enabled","true"]', '["disabled","false"]'
        asked = re.findall(r"key: sluice.dev/inject, operator: (\w+), values: (\S+)}", text)
        self.assertEqual(asked, [("In", yes), ("NotIn", no), ("NotIn", yes), ("In", yes)])
        everywhere = self.render(["allNamespaces=true"])["MutatingWebhookConfiguration", "", "sluice-injector"]
        self.assertNotIn("metadata.name, operator: In", everywhere)

    def test_every_container_is_restricted(self):
        for name, values in COMBINATIONS.items():
            for key, text in self.render(values).items():
                containers = len(re.findall(r"^ +image: ", text, re.M))
                if not containers:
                    continue
                with self.subTest(name, object=key):
                    for line in (
                        "allowPrivilegeEscalation: false",
                        "readOnlyRootFilesystem: true",
                        r"drop: \[ALL\]",
                        "resources:",
                    ):
                        self.assertEqual(len(re.findall(rf"^ +{line}$", text, re.M)), containers, line)
                    self.assertIn("runAsNonRoot: true", text)

    def test_the_password_is_made_once_and_the_same_everywhere(self):
        def passwords(values):
            secrets = [text for key, text in self.render(values).items() if key[0] == "Secret"]
            return [re.search("password: (.+)", text).group(1) for text in secrets]

        first, again = (passwords(["watchNamespaces={a,b}"]) for _ in range(2))
        self.assertEqual(len(first), 3)
        self.assertEqual(len(set(first)), 1)
        self.assertNotEqual(first, again)
        self.assertGreaterEqual(len(first[0]), 40)

    def test_another_version_of_the_chart_leaves_redis_as_it_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            newer = pathlib.Path(folder) / "sluice"
            shutil.copytree(CHART, newer)
            about = newer / "Chart.yaml"
            about.write_text(re.sub(r"(?m)^(version|appVersion): .+", r"\1: 99.0.0", about.read_text()))
            before, after = (self.render([], chart=chart) for chart in (CHART, newer))

        def template(objects, component):
            text = objects["Deployment", NAMESPACE, f"sluice-{component}"]
            return text.split("\n  template:\n")[1]

        self.assertNotEqual(template(before, "controller"), template(after, "controller"))
        self.assertEqual(template(before, "redis"), template(after, "redis"))

    def test_variables_are_the_text_that_was_written(self):
        written = {"DELAY": "1200000", "BATCH": "5", "RATIO": "0.25", "OFF": "true", "NAME": '"1e6"'}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            lines = (f"    OTEL_{name}: {value}\n" for name, value in written.items())
            file.write("gateway: {enabled: true}\ntelemetry:\n  env:\n" + "".join(lines))
            file.flush()
            objects = self.render([], more=["--values", file.name])
        expected = {f"OTEL_{name}": value.strip('"') for name, value in written.items()}
        for component, prefix in ("controller", ""), ("controller", "SLUICE_SIDECAR_"), ("gateway", ""):
            text = objects["Deployment", NAMESPACE, f"sluice-{component}"]
            self.assertEqual(dict(re.findall(rf'- name: {prefix}(OTEL_\w+)\n +value: "(.*)"', text)), expected)

    def test_an_autoscaler_owns_the_number_of_replicas(self):
        for scaled in "true", "false":
            values = ["gateway.enabled=true", f"gateway.autoscaling.enabled={scaled}"]
            text = self.render(values)["Deployment", NAMESPACE, "sluice-gateway"]
            self.assertEqual("replicas:" not in text, scaled == "true")

    def test_kubernetes_without_a_sleep_action_gets_none(self):
        for version, there in ("1.29.0", False), ("1.30.0", True):
            text = "".join(self.render([], more=["--kube-version", version]).values())
            self.assertEqual("preStop:" in text, there)

    def test_names_follow_the_release(self):
        self.assertIn(("Service", NAMESPACE, "prod-sluice-controller"), self.render([], release="prod"))
        self.assertIn(("Service", NAMESPACE, "my-sluice-controller"), self.render([], release="my-sluice"))

    def test_monitors_find_their_ports(self):
        objects = self.render(MONITORING + ["gateway.enabled=true"])
        self.assertIn("port: admin", objects["ServiceMonitor", NAMESPACE, "sluice-controller"])
        self.assertIn("name: admin", objects["Service", NAMESPACE, "sluice-controller"])
        port = re.search(r"port: ([a-z-]+)", objects["PodMonitor", NAMESPACE, "sluice-agents"]).group(1)
        self.assertIn(f"name: {port},", objects["Deployment", NAMESPACE, "sluice-gateway"])
        injection = (ROOT / "crates/sluice-controller/src/injection").rglob("*.rs")
        self.assertTrue([path for path in injection if f'"{port}"' in path.read_text()], "injected agents name it so too")

    def test_crds_are_kept(self):
        crds = self.render([], chart=CRDS)
        self.assertEqual(len(crds), len(list((ROOT / "crds").glob("*.yaml"))))
        for text in crds.values():
            self.assertIn("helm.sh/resource-policy: keep", text)
