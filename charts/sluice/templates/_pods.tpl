{{/* What pods have in common: PodSecurity *restricted*, Redis, telemetry, and all that makes a container an agent. */}}

{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods may run, of a component's values: (list . "controller" .Values.controller) */}}
{{- define "sluice.scheduling" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $values := index . 2 -}}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if $values.topologySpreadConstraints }}
  {{- range $values.topologySpreadConstraints }}
  {{- $ours := dict "labelSelector" (dict "matchLabels" (include "sluice.selector" (list $root $component) | fromYaml)) }}
  {{- list (merge (deepCopy .) $ours) | toYaml | nindent 2 }}
  {{- end }}
{{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sluice.selector" (list $root $component) | nindent 8 }}
    # Each revision is spread by itself: the old one's pods would push the new one's together.
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}

{{/* The URL of the shared state, or empty. */}}
{{- define "sluice.redisUrl" -}}
{{- if .Values.redis.enabled -}}
redis://{{ include "sluice.redis" . }}.{{ .Release.Namespace }}.svc:{{ include "sluice.port.redis" . }}
{{- else -}}
{{- .Values.redis.external.url -}}
{{- end -}}
{{- end -}}

{{/* The Secret with its user and password, or empty. */}}
{{- define "sluice.redisSecret" -}}
{{- if .Values.redis.enabled -}}
{{- .Values.redis.auth.existingSecret | default (include "sluice.redis" .) -}}
{{- else -}}
{{- .Values.redis.external.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "sluice.redisEnv" -}}
{{- with include "sluice.redisUrl" . }}
- name: SLUICE_REDIS_URL
  value: {{ . | quote }}
{{- end }}
{{- with include "sluice.redisSecret" . }}
- name: SLUICE_REDIS_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: username}
- name: SLUICE_REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: password}
{{- end }}
{{- if not .Values.redis.enabled }}
{{- with .Values.redis.external.caPem }}
- name: SLUICE_REDIS_CA_PEM
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.ownEnv" -}}
- name: SLUICE_NAMESPACE
  valueFrom:
    fieldRef: {fieldPath: metadata.namespace}
- name: SLUICE_POD
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: RUST_LOG
  value: {{ .Values.log.level | quote }}
- name: SLUICE_LOG_FORMAT
  value: {{ .Values.log.format }}
{{- end -}}

{{/* A value as a variable has it. Numbers of a values file are floating: as text, a million would be 1e+06. */}}
{{- define "sluice.text" -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end -}}

{{- define "sluice.telemetryEnv" -}}
{{- range $name, $value := .Values.telemetry.env }}
- name: {{ $name }}
  value: {{ include "sluice.text" $value | quote }}
{{- end }}
{{- end -}}

{{/* An agent that this chart makes itself, with the controller's Sidecar as its model: (list . "127.0.0.1" grace) */}}
{{- define "sluice.agentEnv" -}}
{{- $root := index . 0 -}}
{{ include "sluice.ownEnv" $root }}
- name: SLUICE_LISTEN
  value: {{ printf "%s:%s" (index . 1) (include "sluice.port.applications" $root) | quote }}
- name: SLUICE_ADMIN
  value: "0.0.0.0:{{ include "sluice.port.agentAdmin" $root }}"
- name: SLUICE_CONTROL_PLANE
  value: {{ include "sluice.controlPlane" $root }}
- name: SLUICE_CONTROL_PLANE_CA
  value: /var/run/sluice/ca/ca.crt
- name: SLUICE_TOKEN
  value: /var/run/sluice/token/token
- name: SLUICE_SNAPSHOT
  value: /var/run/sluice/state
- name: SLUICE_GRACE
  value: {{ index . 2 }}s
{{- end -}}

{{- define "sluice.agentMounts" -}}
- {name: sluice-token, mountPath: /var/run/sluice/token, readOnly: true}
- {name: sluice-ca, mountPath: /var/run/sluice/ca, readOnly: true}
- {name: sluice-state, mountPath: /var/run/sluice/state}
{{- end -}}

{{- define "sluice.agentVolumes" -}}
- name: sluice-token
  projected:
    defaultMode: 0444
    sources:
    - serviceAccountToken: {audience: sluice, expirationSeconds: 3600, path: token}
- name: sluice-ca
  # The pod may be older than what the controller publishes: the agent waits for the file.
  configMap: {name: {{ include "sluice.ca" . }}, optional: true}
- name: sluice-state
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end -}}
