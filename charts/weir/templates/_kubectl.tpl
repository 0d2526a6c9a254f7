{{/* A container that runs kubectl once. Call with (list $ name arguments). */}}
{{- define "weir.kubectl" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
image: {{ include "weir.image" (list $root $root.Values.kubectl.image) }}
imagePullPolicy: IfNotPresent
command: [kubectl]
args: {{ concat (list (printf "--namespace=%s" $root.Release.Namespace) "--cache-dir=/tmp/kubectl") (index . 2) | toJson }}
resources:
  requests: {cpu: 10m, memory: 64Mi}
  limits: {memory: 128Mi}
securityContext: {{- include "weir.containerSecurity" . | nindent 2 }}
volumeMounts:
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* What such pods have in common. Call with (list $ account). */}}
{{- define "weir.kubectlPod" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ index . 1 }}
restartPolicy: Never
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ (($root.Values).podSecurityContext).runAsUser | default 65532 }}
  runAsGroup: {{ (($root.Values).podSecurityContext).runAsGroup | default 65532 }}
  seccompProfile: {type: RuntimeDefault}
volumes:
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Metadata of what runs before the release goes. Call with (list $ weight). */}}
{{- define "weir.uninstallMeta" }}
  labels: {{- include "weir.labels" (index . 0) | nindent 4 }}
    app.kubernetes.io/component: uninstall
  annotations:
    helm.sh/hook: pre-delete
    helm.sh/hook-weight: {{ index . 1 | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Metadata of what `helm test` runs. Call with (list $ weight). */}}
{{- define "weir.testMeta" }}
  namespace: {{ (index . 0).Release.Namespace }}
  labels: {{- include "weir.labels" (index . 0) | nindent 4 }}
    app.kubernetes.io/component: test
  annotations:
    helm.sh/hook: test
    helm.sh/hook-weight: {{ index . 1 | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
