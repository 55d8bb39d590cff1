{{/* Rights that a namespace, or the whole cluster, grants. */}}

{{/* The CA that agents trust. By name even to create: it is made by a server-side apply, whose creation is checked with its
     name. */}}
{{- define "sluice.rules.publishCa" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ include "sluice.ca" . }}]
  verbs: [list, watch, create, patch]
{{- end -}}

{{/* Secrets that routes name. Which these are is the routes' business, so it is all of the namespace. */}}
{{- define "sluice.rules.secrets" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
{{- end -}}
