{{/* Labels of every object. Not those of pods: a new version of the chart alone must not restart what runs. */}}
{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: weir
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels by which pods are found; the operator looks for gateways by the second one. Call with a component. */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Name of an image. Call with (list $ image). */}}
{{- define "weir.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Where nobody runs as root and nothing is written but to volumes. */}}
{{- define "weir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "weir.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  # A busy node is no reason to end what runs on it.
  timeoutSeconds: 10
  failureThreshold: 6
{{- end }}

{{/* Where pods run. Call with the values of operator or gateway. */}}
{{- define "weir.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "weir.artifactMounts" -}}
{{- range .Values.artifacts.claims }}
- {name: {{ . }}, mountPath: /artifacts/{{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "weir.artifactVolumes" -}}
{{- range .Values.artifacts.claims }}
- name: {{ . }}
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{/* The Secret of the bundled PostgreSQL. */}}
{{- define "weir.postgresqlSecret" -}}
{{ .Values.postgresql.secretName | default "weir-postgresql" }}
{{- end }}

{{/* Objects of a file that the project keeps once, with the release's labels. Call with (list $ file namespaced). */}}
{{- define "weir.objects" -}}
{{- $root := index . 0 }}{{ $file := index . 1 }}{{ $namespaced := index . 2 }}
{{- range splitList "\n---\n" ($root.Files.Get $file) }}
{{- $object := fromYaml . }}
{{- with $object.Error }}{{ fail (printf "%s: %s" $file .) }}{{ end }}
{{- $_ := set $object.metadata "labels" (include "weir.labels" $root | fromYaml) }}
{{- if $namespaced }}{{ $_ := set $object.metadata "namespace" $root.Release.Namespace }}{{ end }}
{{- if and (eq $object.kind "Secret") (not $root.Values.uninstall.sweep) }}
{{- /* Workers stay: a pod that starts anew asks for the Secret it mounts. */}}
{{- $_ := set $object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
