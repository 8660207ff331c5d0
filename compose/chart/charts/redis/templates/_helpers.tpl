{{- define "redis.fullname" -}}
{{- printf "%s-redis" (.Release.Name | trunc 46 | trimSuffix "-") -}}
{{- end -}}

{{/* The Secret that holds the password; whoever dials asks for it by this name too. */}}
{{- define "redis.secret" -}}
{{- default (include "redis.fullname" .) .Values.existingSecret -}}
{{- end -}}

{{- define "redis.selector" -}}
app.kubernetes.io/name: redis
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: redis
{{- end -}}

{{- define "redis.labels" -}}
{{ include "redis.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
