{{/* Names, labels and addresses. */}}

{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "sluice" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-sluice" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sluice.controller" -}}{{ include "sluice.fullname" . }}-controller{{- end -}}
{{- define "sluice.gateway" -}}{{ include "sluice.fullname" . }}-gateway{{- end -}}
{{- define "sluice.redis" -}}{{ include "sluice.fullname" . }}-redis{{- end -}}
{{- define "sluice.injector" -}}{{ include "sluice.fullname" . }}-injector{{- end -}}

{{/* Written by the controller, under a name that agents know. */}}
{{- define "sluice.ca" -}}sluice-ca{{- end -}}

{{- define "sluice.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "sluice.redisImage" -}}
{{- with .Values.redis.image -}}
{{ .repository }}{{ empty .digest | ternary (printf ":%s" .tag) (printf "@%s" .digest) }}
{{- end -}}
{{- end -}}

{{/* By component: (list . "controller") */}}
{{- define "sluice.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "sluice.labels" -}}
{{- $root := index . 0 -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Where agents fetch their policies. */}}
{{- define "sluice.controlPlane" -}}
https://{{ include "sluice.controller" . }}.{{ .Release.Namespace }}.svc:{{ include "sluice.port.policy" . }}
{{- end -}}

{{/* The one place of the ports. The sidecar's are the controller's business: it makes the container. */}}
{{- define "sluice.port.applications" -}}8110{{- end -}}
{{- define "sluice.port.agentAdmin" -}}8111{{- end -}}
{{- define "sluice.port.policy" -}}8112{{- end -}}
{{- define "sluice.port.admin" -}}8113{{- end -}}
{{- define "sluice.port.webhook" -}}9443{{- end -}}
{{- define "sluice.port.redis" -}}6379{{- end -}}
{{/* The container port by which a PodMonitor finds agents. */}}
{{- define "sluice.port.agentAdminName" -}}sluice-admin{{- end -}}

{{- define "sluice.gatewayNamespace" -}}{{ .Values.gateway.namespace | default .Release.Namespace }}{{- end -}}

{{/* Where Sluice works, as a JSON object {"names": […]}: what is watched, and the gateway's own. */}}
{{- define "sluice.namespaces" -}}
{{- $names := .Values.watchNamespaces -}}
{{- if .Values.gateway.enabled -}}
{{- $names = append $names (include "sluice.gatewayNamespace" .) -}}
{{- end -}}
{{- dict "names" ($names | uniq | sortAlpha) | toJson -}}
{{- end -}}

{{/* Whether there is a webhook: true or empty. */}}
{{- define "sluice.injects" -}}
{{- if and .Values.injection.enabled (or .Values.allNamespaces .Values.watchNamespaces) -}}true{{- end -}}
{{- end -}}
