{{/* What pods have in common: PodSecurity *restricted*, where they run, and all that makes a container an agent. */}}

{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
{{- with int64 .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Of files that are nobody else's business: the group's, and where none is named that of whoever the platform chose. */}}
{{- define "sluice.fileMode" -}}
{{ int64 .Values.runAsUser | empty | ternary "0444" "0440" }}
{{- end -}}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods may run, of a component's values. */}}
{{- define "sluice.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The same, and spread: (list . "controller" .Values.controller) */}}
{{- define "sluice.scheduling" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $values := index . 2 -}}
{{- include "sluice.placement" $values }}
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
