"""What an API server says of the charts, where there is one."""

import os
import tempfile
import unittest

from chart import CHART, COMBINATIONS, CRDS, HELM, program, run, settings


@unittest.skipUnless(os.environ.get("KUBECONFIG"), "no KUBECONFIG: nothing was shown to an API server")
class Server(unittest.TestCase):
    """An API server takes every rendering, and says nothing against it."""

    @classmethod
    def setUpClass(cls):
        cls.kubectl = program("kubectl")
        cls.namespace = f"sluice-chart-test-{os.getpid()}"
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        lines = "".join(f"    {key}: {value}\n" for key, value in labels.items())
        manifest = f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {cls.namespace}\n  labels:\n{lines}"
        done = run(cls.kubectl, "apply", "-f", "-", stdin=manifest)
        if done.returncode:
            raise RuntimeError(done.stderr)

    @classmethod
    def tearDownClass(cls):
        run(cls.kubectl, "delete", "namespace", cls.namespace, "--wait=false")

    def test_every_combination(self):
        for name, values in COMBINATIONS.items():
            with self.subTest(name):
                rendered = run(HELM, "template", "sluice-chart-test", str(CHART), "--namespace", self.namespace, *settings(values))
                self.assertEqual(rendered.returncode, 0, rendered.stderr)
                command = [self.kubectl, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"]
                done = run(*command, stdin=rendered.stdout)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("Warning", done.stderr)

    def test_the_crds(self):
        rendered = run(HELM, "template", "sluice-crds", str(CRDS))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(rendered.stdout)
            file.flush()
            done = run(self.kubectl, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", file.name)
        self.assertEqual(done.returncode, 0, done.stderr)
