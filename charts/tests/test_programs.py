"""What the chart tells the programs is what they listen to."""

import re
import unittest

from chart import COMBINATIONS, NAMESPACE, ROOT, documents, helm_template

# Passed on as they are.
TELEMETRY = set(re.findall(r"telemetry\.env\.(\w+)=", "\n".join(sum(COMBINATIONS.values(), []))))


class Programs(unittest.TestCase):
    def variables(self, crate):
        # Redis' variables are one set for all programs.
        folders = ROOT / f"crates/{crate}/src", ROOT / "crates/sluice-state/src"
        source = "".join(path.read_text() for folder in folders for path in folder.rglob("*.rs"))
        return set(re.findall(r'"(SLUICE_[A-Z_]+)"', source)), source

    def rendered(self, values, component):
        done = helm_template(values)
        text = documents(done.stdout)["Deployment", NAMESPACE, f"sluice-{component}"]
        return set(re.findall(r"name: (SLUICE_[A-Z_]+)", text)), text

    def test_every_variable_is_known_to_its_program(self):
        for component, crate in ("controller", "sluice-controller"), ("gateway", "sluice-agent"):
            known, _ = self.variables(crate)
            told = set()
            for values in COMBINATIONS.values():
                fixed = ["gateway.enabled=true", "gateway.namespace=", "fullnameOverride=sluice"]
                told |= self.rendered(values + fixed, component)[0]
            told -= {f"SLUICE_SIDECAR_{name}" for name in TELEMETRY}
            self.assertEqual(told - known, set(), f"{crate} does not read these")

    def test_ports_are_the_programs_own(self):
        values = ["gateway.enabled=true"]
        for component, crate in ("controller", "sluice-controller"), ("gateway", "sluice-agent"):
            _, source = self.variables(crate)
            _, text = self.rendered(values, component)
            own = dict(re.findall(r'env = "(SLUICE_[A-Z]+)",[^)]*?default_value = "(?:[0-9.]+|\[::\]):(\d+)"', source))
            told = dict(re.findall(r'name: (SLUICE_[A-Z]+)\n +value: "(?:[0-9.]+|\[::\]):(\d+)"', text))
            self.assertTrue(told)
            self.assertEqual(told, own)
