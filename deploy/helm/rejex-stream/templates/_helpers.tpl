{{- define "rejex.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "rejex.labels" -}}
app.kubernetes.io/name: rejex-stream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rejex.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .Values.secrets }}
envFrom:
{{- range . }}
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "rejex.pod" -}}
serviceAccountName: {{ include "rejex.name" . }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "rejex.mounts" -}}
- {name: config, mountPath: /etc/rejex, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "rejex.volumes" -}}
- name: config
  configMap: {name: {{ include "rejex.name" . }}}
- name: tmp
  emptyDir: {}
{{- end -}}
