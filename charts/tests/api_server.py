"""As much of an API server as Helm asks while it renders: which kinds there are, and objects by their names.

It keeps nothing and checks nothing. What a real one says of the charts is in test_server.py.
"""

import contextlib
import http.server
import json
import os
import tempfile
import threading

# By group and version: resource, kind, whether it is in a namespace.
KINDS = {
    "v1": [
        ("namespaces", "Namespace", False),
        ("secrets", "Secret", True),
        ("configmaps", "ConfigMap", True),
        ("services", "Service", True),
        ("serviceaccounts", "ServiceAccount", True),
        ("pods", "Pod", True),
    ],
    "apps/v1": [("deployments", "Deployment", True)],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget", True)],
    "autoscaling/v2": [("horizontalpodautoscalers", "HorizontalPodAutoscaler", True)],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy", True)],
    "rbac.authorization.k8s.io/v1": [
        ("roles", "Role", True),
        ("rolebindings", "RoleBinding", True),
        ("clusterroles", "ClusterRole", False),
        ("clusterrolebindings", "ClusterRoleBinding", False),
    ],
    "apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False)],
    "admissionregistration.k8s.io/v1": [("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False)],
}
RESOURCES = {"sluice.dev/v1alpha1": [("modelroutes", "ModelRoute", True), ("reliabilitypolicies", "ReliabilityPolicy", True)]}


def thing(kind, name, namespace=None, labels=(), annotations=(), **more):
    """An object; `kind` with its group and version, as in `apps/v1/Deployment`."""
    version, _, kind = kind.rpartition("/")
    metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


class Cluster:
    """What a cluster has, and the answers that follow from it."""

    def __init__(self, *objects, resources=True):
        self.kinds = KINDS | (RESOURCES if resources else {})
        self.objects = [thing("v1/Namespace", name) for name in ("kube-system", "default")] + list(objects)
        if resources:
            self.objects.append(thing("apiextensions.k8s.io/v1/CustomResourceDefinition", "modelroutes.sluice.dev"))

    def answer(self, path):
        """The object that a path names, or None."""
        if path == "/version":
            return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [self.group(of) for of in self.kinds if "/" in of]}
        for version, kinds in self.kinds.items():
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            if path == root:
                named = [{"name": name, "singularName": "", "kind": kind, "namespaced": inside, "verbs": ["get", "list"]}
                         for name, kind, inside in kinds]  # fmt: skip
                return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": named}
            if path.startswith(f"{root}/"):
                return self.found(version, path.removeprefix(f"{root}/").split("/"))
        return None

    def group(self, version):
        group = {"groupVersion": version, "version": version.split("/")[1]}
        return {"name": version.split("/")[0], "versions": [group], "preferredVersion": group}

    def found(self, version, parts):
        namespace = parts[1] if parts[0] == "namespaces" and len(parts) > 2 else None
        resource, *name = parts[2:] if namespace else parts
        kind = next((kind for known, kind, _ in self.kinds[version] if known == resource), None)
        all = [
            each
            for each in self.objects
            if (each["apiVersion"], each["kind"]) == (version, kind)
            and namespace in (None, each["metadata"].get("namespace"))
        ]
        if not name:
            return {"apiVersion": version, "kind": f"{kind}List", "metadata": {}, "items": all}
        return next((each for each in all if each["metadata"]["name"] == name[0]), None)

    @contextlib.contextmanager
    def served(self):
        """Runs while it is needed; gives the environment in which Helm finds it."""
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                answer = cluster.answer(self.path.split("?")[0])
                status = 200
                if answer is None:
                    status, reason = 404, {"status": "Failure", "reason": "NotFound", "code": 404}
                    answer = {"apiVersion": "v1", "kind": "Status", "metadata": {}, **reason}
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with tempfile.TemporaryDirectory() as cache:
                address = f"http://127.0.0.1:{server.server_port}"
                yield os.environ | {"KUBECONFIG": os.devnull, "KUBECACHEDIR": cache, "HELM_KUBEAPISERVER": address}
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
