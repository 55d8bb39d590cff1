"""Commands as they are typed: those of the documents, and those that NOTES.txt prints."""

import functools
import json
import re
import shlex
import tempfile
import unittest
from pathlib import Path

from chart import CHART, COMBINATIONS, HELM, NAMESPACE, ROOT, helm_template, run, settings

DOCUMENTS = ("README.md", "docs/install.md", "docs/controller.md", "docs/telemetry.md")
CHARTS_OWN = ("charts/sluice/README.md", "charts/sluice-crds/README.md")
# A shell warns of a here-document that nothing ends, and goes on.
QUIET = ""


def commands(name):
    """Each command of a document's console blocks, whole."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", text, re.M | re.S)
    typed = re.findall(r"^ *\$ ((?:.*\\\n)*.*)$", "".join(blocks), re.M)
    return [re.sub(r" {2,}# .*$", "", command, flags=re.M) for command in typed]


@functools.cache
def flags(subcommand):
    return set(re.findall(r"(?:^|[ ,])(--?[a-z][a-z-]*)", run(HELM, subcommand, "--help").stdout))


class Documents(unittest.TestCase):
    def helm(self, name):
        """The words of each of a document's commands of Helm."""
        words = (shlex.split(command) for command in commands(name))
        return [each for each in words if each[0] == "helm"]

    def test_a_shell_takes_them(self):
        for name in DOCUMENTS + CHARTS_OWN:
            self.assertTrue(name == "docs/controller.md" or commands(name), name)
            for command in commands(name):
                with self.subTest(name, command=command):
                    done = run("bash", "-n", stdin=command)
                    self.assertEqual((done.returncode, done.stderr), (0, QUIET))

    def test_helm_has_their_flags(self):
        for name in DOCUMENTS + CHARTS_OWN:
            for words in self.helm(name):
                used = {word.split("=")[0] for word in words if word.startswith("-")}
                self.assertLessEqual(used, flags(words[1]), words)

    def test_each_names_its_namespace(self):
        for name in DOCUMENTS + CHARTS_OWN:
            for words in self.helm(name):
                self.assertIn(f"--namespace {NAMESPACE}", " ".join(words), name)

    def test_what_they_set_can_be_installed(self):
        installs = 0
        for name in DOCUMENTS + CHARTS_OWN:
            made = set(re.findall(r"kubectl create namespace ([-a-z]+)", "\n".join(commands(name))))
            for words in self.helm(name):
                values = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
                chart = next((word for word in words if word.startswith("charts/")), None)
                if not chart:
                    continue
                self.assertTrue((ROOT / chart / "Chart.yaml").exists())
                done = helm_template(values, chart=ROOT / chart)
                self.assertEqual(done.returncode, 0, done.stderr)
                if "--install" in words and chart == "charts/sluice":
                    installs += 1
                    for value in "image.repository=registry.example/", "image.tag=":
                        self.assertIn(value, " ".join(values))
                    named = re.findall(r"watchNamespaces={(.*?)}", " ".join(values))
                    self.assertLessEqual({each for list in named for each in list.split(",")}, made)
        self.assertEqual(installs, 3)


class Notes(unittest.TestCase):
    def notes(self, values):
        command = [HELM, "install", "sluice", str(CHART), "--namespace", NAMESPACE, "--dry-run=client"]
        done = run(*command, *settings(values))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split("NOTES:\n")[1]

    def typed(self, values):
        """Pastes every block of commands into a shell; gives what kubectl and helm would have been asked."""
        paragraphs = re.split(r"\n{2,}", self.notes(values).strip())
        script = [block for before, block in zip(paragraphs, paragraphs[1:]) if before[-1] == ":" != block[-1]]
        with tempfile.TemporaryDirectory() as folder:
            asked = Path(folder) / "asked"
            stand_in = 'import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.read() if "-" in sys.argv else ""]))'
            for name in "kubectl", "helm":
                program = Path(folder) / name
                program.write_text(f"#!/bin/sh\nexec python3 -c '{stand_in}' {name} \"$@\" >>{asked}\n")
                program.chmod(0o755)
            done = run("bash", "-eu", stdin="\n".join(script), env={"PATH": f"{folder}:/usr/bin:/bin", "OPENAI_API_KEY": "sk"})
            self.assertEqual((done.returncode, done.stderr), (0, QUIET))
            return [json.loads(line) for line in asked.read_text().splitlines()]

    def test_they_say_what_to_do_next(self):
        self.assertIn("say where it is to work", self.notes([]))
        self.assertIn("every Secret of the cluster", self.notes(["allNamespaces=true"]))
        self.assertIn("WARNING: there is no Redis", self.notes(["redis.enabled=false"]))
        self.assertIn("spends your money", self.notes(COMBINATIONS["open gateway"]))
        self.assertIn("gateway.namespace", self.notes(["gateway.enabled=true"]))
        for values in COMBINATIONS.values():
            self.assertNotIn("\n\n\n", self.notes(values).strip())

    def test_their_commands_can_be_pasted(self):
        for values, namespace, injects in (
            ([], "my-namespace", False),
            (["allNamespaces=true"], "my-namespace", True),
            (["watchNamespaces={team-a,team-b}"], "team-a", True),
            ([f"watchNamespaces={{{NAMESPACE},team-a}}"], "team-a", True),
            (["gateway.enabled=true"], NAMESPACE, False),
            (["gateway.enabled=true", "gateway.namespace=edge"], "edge", False),
            (["gateway.enabled=true", "gateway.namespace=edge", "watchNamespaces={team-a}"], "team-a", True),
        ):
            with self.subTest(values=values):
                asked = self.typed(values)
                (manifest,) = [read for words, read in asked if words[:5] == ["kubectl", "-n", namespace, "apply", "-f"]]
                self.assertTrue(manifest.startswith("apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\n"), manifest)
                self.assertTrue(manifest.endswith("{name: openai, key: api-key}}\n"), manifest)
                secret = ["kubectl", "-n", namespace, "create", "secret", "generic", "openai", "--from-literal=api-key=sk"]
                self.assertIn([secret, ""], asked)
                labels = ["kubectl", "label", "namespace", namespace, "sluice.dev/inject=enabled"]
                self.assertEqual([labels, ""] in asked, injects)
                self.assertIn([["helm", "test", "sluice", "-n", NAMESPACE], ""], asked)
                # Where it works nowhere yet, they say how to change that.
                upgrades = [words for words, _ in asked if words[:2] == ["helm", "upgrade"]]
                self.assertEqual([words[-1] for words in upgrades], [] if values else ["watchNamespaces={my-namespace}"])
