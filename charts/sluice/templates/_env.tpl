{{/* Variables: what programs are told. One place each, for validate.yaml reads the names from here. */}}

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

{{/* (list . optional): whether the Secret may be missing, as in a namespace that is not the release's. */}}
{{- define "sluice.redisEnv" -}}
{{- $root := index . 0 -}}{{- $optional := index . 1 | ternary ", optional: true" "" -}}
{{- with include "sluice.redisUrl" $root }}
- name: SLUICE_REDIS_URL
  value: {{ . | quote }}
{{- end }}
{{- with include "sluice.redisSecret" $root }}
- name: SLUICE_REDIS_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: username{{ $optional }}}
- name: SLUICE_REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: password{{ $optional }}}
{{- end }}
{{- if not $root.Values.redis.enabled }}
{{- with $root.Values.redis.external.caPem }}
- name: SLUICE_REDIS_CA_PEM
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where to listen on every address, of either family: (list . "admin") */}}
{{- define "sluice.everywhere" -}}
[::]:{{ include (printf "sluice.port.%s" (index . 1)) (index . 0) }}
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
{{- with .Values.telemetry.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: headers, optional: true}
{{- end }}
{{- end -}}

{{/* An agent that this chart makes itself, with the controller's Sidecar as its model: (list . "127.0.0.1:8110" grace) */}}
{{- define "sluice.agentEnv" -}}
{{- $root := index . 0 -}}
{{ include "sluice.ownEnv" $root }}
- name: SLUICE_LISTEN
  value: {{ index . 1 | quote }}
- name: SLUICE_ADMIN
  value: {{ include "sluice.everywhere" (list $root "agentAdmin") | quote }}
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

