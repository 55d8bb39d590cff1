{{/* What the gateway is told. */}}
{{- define "sluice.gatewayEnv" -}}
{{- with .Values.gateway -}}
{{ include "sluice.agentEnv" (list $ (include "sluice.everywhere" (list $ "applications")) (int .graceSeconds)) }}
- name: SLUICE_LAME_DUCK
  value: {{ int .lameDuckSeconds }}s
- name: SLUICE_CLIENT_AUTH
  value: {{ .clientAuth.type | lower }}
{{- if eq .clientAuth.type "Keys" }}
- name: SLUICE_CLIENT_KEYS
  value: /var/run/sluice/keys
{{- end }}
{{- if and (eq .clientAuth.type "Tokens") .clientAuth.namespaces }}
- name: SLUICE_CLIENT_NAMESPACES
  value: {{ join "," .clientAuth.namespaces | quote }}
{{- end }}
{{- if .tlsSecret }}
- name: SLUICE_TLS_CERT
  value: /var/run/sluice/tls/tls.crt
- name: SLUICE_TLS_KEY
  value: /var/run/sluice/tls/tls.key
{{- end }}
{{- /* Its namespace may be another one than the release's: without its Secret it is alone, and serves. */}}
{{- include "sluice.redisEnv" (list $ true) | nindent 0 }}
{{- include "sluice.telemetryEnv" $ | nindent 0 }}
{{- end -}}
{{- end -}}
