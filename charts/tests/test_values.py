"""Every value is there for something, and says so to every object that it concerns."""

import concurrent.futures
import os
import re
import tempfile
import unittest

from chart import CHART, COMBINATIONS, MONITORING, NAMESPACE, RenderingCase, helm_template

# Else no two renderings are alike.
PASSWORD = "redis.auth.password=0123456789abcdef"


class EveryValue(unittest.TestCase):
    def rendered(self, values):
        """What these values make; where they are refused, why."""
        own = any(value.startswith("redis.auth.existingSecret") for value in values)
        done = helm_template(values if own else [PASSWORD, *values])
        return done.stdout or done.stderr

    def test_without_it_something_else_is_rendered(self):
        paths = set(re.findall(r"^\| `([A-Za-z.]+)` \|", (CHART / "README.md").read_text(), re.M))
        idle = set(paths)
        # Helm is a process of its own each time: as many at once as there are processors.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as at_once:
            for values in [*COMBINATIONS.values(), MONITORING, [*MONITORING, "monitoring.interval=15s"]]:
                parts = {}
                for value in values:
                    name = re.split(r"[\[=]", value)[0]
                    path = next(path for path in paths if f"{name}.".startswith(f"{path}."))
                    parts.setdefault(path, []).append(value)
                tried = sorted(parts.keys() & idle)
                without = ([value for value in values if value not in parts[path]] for path in tried)
                complete, *less = at_once.map(self.rendered, [values, *without])
                idle -= {path for path, rendered in zip(tried, less) if rendered != complete}
        self.assertEqual(idle, set())


class Objects(RenderingCase):
    def containers(self, objects):
        """Each object's text by its name, as far as it has containers."""
        return {key[2]: text for key, text in objects.items() if re.search(r"^ +image: ", text, re.M)}

    def variables(self, text):
        """What follows each variable's name."""
        return dict(re.findall(r"^ +- name: ([A-Z_]+)\n((?: +(?:value|valueFrom|secretKeyRef|fieldRef).*\n)+)", text, re.M))

    def test_the_platform_may_choose_the_user(self):
        gateway = ["gateway.enabled=true", "gateway.tlsSecret=tls"]
        named, chosen = (self.containers(self.render([*gateway, *more])) for more in ([], ["runAsUser=0"]))
        self.assertEqual(len(named), 4)
        for name, text in named.items():
            for line in "runAsUser: 65532", "runAsGroup: 65532", "fsGroup: 65532":
                self.assertEqual(len(re.findall(rf"^ +{line}$", text, re.M)), 1, name)
        for name, text in chosen.items():
            self.assertNotRegex(text, "runAsUser|runAsGroup|fsGroup", name)
            # Without a group of its own, only others can read what kubelet writes as root.
            self.assertNotIn("defaultMode: 0440", text, name)
        told = [self.variables(all["sluice-controller"])["SLUICE_SIDECAR_RUN_AS_USER"] for all in (named, chosen)]
        self.assertEqual([re.search('"(.*)"', line).group(1) for line in told], ["65532", "0"])

    def test_a_user_of_a_values_file_is_a_whole_number(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("runAsUser: 1000680000\n")
            file.flush()
            text = self.render([], more=["--values", file.name])["Deployment", NAMESPACE, "sluice-controller"]
        self.assertEqual(text.count("1000680000"), 4)

    def test_a_quota_of_cpu_is_met_by_every_container_that_is_no_workload_of_its_own(self):
        for limit, expected in ("", 0), ("1", 2), ("500m", 2):
            objects = self.render([f"sidecar.cpuLimit={limit}"])
            self.assertEqual(objects["Pod", NAMESPACE, "sluice-test-agent"].count(f"cpu: {limit}}}"), expected)
            told = self.variables(objects["Deployment", NAMESPACE, "sluice-controller"])
            self.assertEqual("SLUICE_SIDECAR_CPU_LIMIT" in told, bool(limit))

    def test_they_listen_by_both_families(self):
        for name, values in COMBINATIONS.items():
            addresses = set(re.findall(r'value: "(.*):[0-9]+"$', "".join(self.render(values).values()), re.M))
            of_the_pod = {address for address in addresses if "/" not in address}
            self.assertEqual(of_the_pod - {"127.0.0.1"}, {"[::]"}, name)

    def test_a_secret_of_another_namespace_may_be_missing(self):
        objects = self.render(["gateway.enabled=true", "gateway.namespace=team", "redis.auth.existingSecret=mine"])
        optional = {"sluice-controller": False, "sluice-redis": False, "sluice-gateway": True, "sluice-test-agent": False}
        for name, text in self.containers(objects).items():
            references = re.findall(r"secretKeyRef: {name: \"mine\", key: (?:username|password)(.*)}", text)
            self.assertEqual(references, [", optional: true" if optional[name] else ""] * 2, name)

    def test_a_collectors_secret_goes_to_all_that_tell_it_something(self):
        objects = self.render(["gateway.enabled=true", "telemetry.headersSecret=collector"])
        for name in "sluice-controller", "sluice-gateway":
            told = self.variables(objects["Deployment", NAMESPACE, name])["OTEL_EXPORTER_OTLP_HEADERS"]
            self.assertIn('{name: "collector", key: headers, optional: true}', told)
        told = self.variables(objects["Deployment", NAMESPACE, "sluice-controller"])
        self.assertIn('"collector"', told["SLUICE_SIDECAR_OTEL_HEADERS_SECRET"])

    def test_sidecars_are_pulled_and_log_like_the_rest(self):
        values = ["image.pullPolicy=Always", "sidecar.imagePullSecrets={a,b}", "log.level=debug", "log.format=text"]
        told = self.variables(self.render(values)["Deployment", NAMESPACE, "sluice-controller"])
        expected = {"IMAGE_PULL_POLICY": "Always", "IMAGE_PULL_SECRETS": "a,b", "LOG_LEVEL": "debug", "LOG_FORMAT": "text"}
        for name, value in expected.items():
            self.assertRegex(told[f"SLUICE_SIDECAR_{name}"], f'value: "?{value}"?\n')
        self.assertNotIn("SLUICE_SIDECAR_IMAGE_PULL_SECRETS", self.render([])["Deployment", NAMESPACE, "sluice-controller"])

    def test_the_test_pod_runs_where_the_controller_may(self):
        objects = self.render(COMBINATIONS["everything set"])
        placement = r"(?s)      priorityClassName: .*?(?=      topologySpreadConstraints:)"
        of_controller = re.search(placement, objects["Deployment", NAMESPACE, "reliability-controller"]).group(0)
        self.assertIn("disk: ssd", of_controller)
        outdented = re.sub(r"(?m)^    ", "", of_controller)
        self.assertIn(outdented, objects["Pod", NAMESPACE, "reliability-test-agent"])
