{{/* (list . name operator-of-the-namespace's-"enabled" operator-of-the-pod's-label its-values) */}}
{{- define "sluice.webhook" -}}
{{- $root := index . 0 -}}
- name: {{ index . 1 }}
  admissionReviewVersions: [v1]
  clientConfig:
    service:
      name: {{ include "sluice.controller" $root }}
      namespace: {{ $root.Release.Namespace }}
      path: /inject
      port: 443
  rules:
  - {operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods], scope: Namespaced}
  # A pod without a sidecar is better than no pod, and the controller tells of it.
  failurePolicy: Ignore
  matchPolicy: Equivalent
  reinvocationPolicy: Never
  # It publishes the CA to the pod's namespace first.
  sideEffects: NoneOnDryRun
  timeoutSeconds: {{ $root.Values.injection.timeoutSeconds }}
  namespaceSelector:
    matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, {{ $root.Release.Namespace }}]}
    {{- if not $root.Values.allNamespaces }}
    - {key: kubernetes.io/metadata.name, operator: In, values: {{ $root.Values.watchNamespaces | toJson }}}
    {{- end }}
    - {key: sluice.dev/inject, operator: {{ index . 2 }}, values: {{ list "enabled" "true" | toJson }}}
  objectSelector:
    matchExpressions:
    - {key: sluice.dev/inject, operator: {{ index . 3 }}, values: {{ index . 4 | toJson }}}
{{- end -}}
