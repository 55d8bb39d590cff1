{{/* What the controller is told. */}}
{{- define "sluice.controllerEnv" -}}
{{ include "sluice.ownEnv" . }}
- name: SLUICE_POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- name: SLUICE_LISTEN
  value: {{ include "sluice.everywhere" (list . "policy") | quote }}
- name: SLUICE_WEBHOOK
  value: {{ include "sluice.everywhere" (list . "webhook") | quote }}
- name: SLUICE_ADMIN
  value: {{ include "sluice.everywhere" (list . "admin") | quote }}
- name: SLUICE_LEASE
  value: {{ include "sluice.controller" . }}
- name: SLUICE_SERVICE
  value: {{ include "sluice.controller" . }}
{{- if include "sluice.injects" . }}
- name: SLUICE_WEBHOOK_CONFIGURATION
  value: {{ include "sluice.injector" . }}
{{- end }}
{{- $namespaces := (include "sluice.namespaces" . | fromJson).names }}
{{- if .Values.allNamespaces }}
- name: SLUICE_ALL_SECRETS
  value: "true"
{{- else if $namespaces }}
- name: SLUICE_SECRET_NAMESPACES
  value: {{ join "," $namespaces | quote }}
{{- end }}
# By it the other replicas know this one.
- name: SLUICE_PEER_TOKEN
  value: /var/run/sluice/peer/token
{{- include "sluice.redisEnv" (list . false) | nindent 0 }}
{{- include "sluice.telemetryEnv" . | nindent 0 }}
# What injected agents are told.
- name: SLUICE_SIDECAR_IMAGE
  value: {{ include "sluice.image" . }}
- name: SLUICE_SIDECAR_IMAGE_PULL_POLICY
  value: {{ .Values.image.pullPolicy }}
{{- with .Values.sidecar.imagePullSecrets }}
- name: SLUICE_SIDECAR_IMAGE_PULL_SECRETS
  value: {{ join "," . | quote }}
{{- end }}
- name: SLUICE_SIDECAR_RUN_AS_USER
  value: {{ int64 .Values.runAsUser | quote }}
- name: SLUICE_SIDECAR_CONTROL_PLANE
  value: {{ include "sluice.controlPlane" . }}
- name: SLUICE_SIDECAR_CPU_REQUEST
  value: {{ include "sluice.text" .Values.sidecar.cpuRequest | quote }}
{{- with .Values.sidecar.cpuLimit }}
- name: SLUICE_SIDECAR_CPU_LIMIT
  value: {{ include "sluice.text" . | quote }}
{{- end }}
- name: SLUICE_SIDECAR_MEMORY_REQUEST
  value: {{ include "sluice.text" .Values.sidecar.memoryRequest | quote }}
- name: SLUICE_SIDECAR_MEMORY_LIMIT
  value: {{ include "sluice.text" .Values.sidecar.memoryLimit | quote }}
- name: SLUICE_SIDECAR_GRACE
  value: {{ .Values.sidecar.graceSeconds }}s
- name: SLUICE_SIDECAR_LOG_LEVEL
  value: {{ .Values.log.level | quote }}
- name: SLUICE_SIDECAR_LOG_FORMAT
  value: {{ .Values.log.format }}
{{- with include "sluice.redisUrl" . }}
- name: SLUICE_SIDECAR_REDIS_URL
  value: {{ . | quote }}
{{- end }}
{{- with include "sluice.redisSecret" . }}
- name: SLUICE_SIDECAR_REDIS_SECRET
  value: {{ . | quote }}
{{- end }}
{{- if and (not .Values.redis.enabled) .Values.redis.external.caPem }}
- name: SLUICE_SIDECAR_REDIS_CA_PEM
  value: {{ .Values.redis.external.caPem | quote }}
{{- end }}
{{- range $name, $value := .Values.telemetry.env }}
- name: SLUICE_SIDECAR_{{ $name }}
  value: {{ include "sluice.text" $value | quote }}
{{- end }}
{{- with .Values.telemetry.headersSecret }}
- name: SLUICE_SIDECAR_OTEL_HEADERS_SECRET
  value: {{ . | quote }}
{{- end }}
{{- end -}}
