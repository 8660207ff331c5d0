{{- define "pagewire.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select the pods of a part: a list of the context and the part. */}}
{{- define "pagewire.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "pagewire.labels" -}}
{{ include "pagewire.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}

{{/* A pool with its defaults, as JSON: a list of the context and the pool's own values. */}}
{{- define "pagewire.pool" -}}
{{- $root := index . 0 -}}
{{- $pool := mergeOverwrite (deepCopy $root.Values.poolDefaults) (deepCopy (index . 1)) -}}
{{- $_ := set $pool "model" (default (first $root.Values.models) $pool.model) -}}
{{- /* A budget says one of two things: two of them together would say both. */}}
{{- if hasKey (index . 1) "podDisruptionBudget" -}}
{{- $_ := set $pool "podDisruptionBudget" (index . 1).podDisruptionBudget -}}
{{- end -}}
{{- toJson $pool -}}
{{- end -}}

{{/* Refuses pools of a model that no router knows, and a cluster that could not answer. */}}
{{- define "pagewire.checkPools" -}}
{{- $root := . -}}
{{- $decoded := list -}}
{{- range $name, $given := .Values.pools -}}
{{- $pool := include "pagewire.pool" (list $root $given) | fromJson -}}
{{- if not (has $pool.model $root.Values.models) -}}
{{- fail (printf "the model %s of the pool %s is none of models" $pool.model $name) -}}
{{- end -}}
{{- if ne $pool.role "prefill" }}{{ $decoded = append $decoded $name }}{{ end -}}
{{- end -}}
{{- if not $decoded }}{{ fail "no pool decodes: it takes one whose role is decode or colocated" }}{{ end -}}
{{- end -}}

{{/* The bounds of a scale, checked: a list of whose they are and its autoscaling. */}}
{{- define "pagewire.checkScale" -}}
{{- $scaling := index . 1 -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "autoscaling of %s: minReplicas %d is above maxReplicas %d" (index . 0) (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{/* What metrics_tls of a pool means: a list of the context and the pool with its defaults. */}}
{{- define "pagewire.metricsTls" -}}
{{- $told := dig "metrics_tls" "auto" (index . 1).settings -}}
{{- if and (has $told (list "on" "mutual")) (not (index . 0).Values.tls.existingSecret) -}}
{{- fail "metrics_tls of a pool shows the cluster's certificate: tls.existingSecret" -}}
{{- end -}}
{{- if ne $told "auto" }}{{ $told }}{{ else }}{{ ternary "on" "off" (not (empty (index . 0).Values.tls.existingSecret)) }}{{ end -}}
{{- end -}}

{{/* How a probe asks for a pod's page: a list of its metrics_tls and the path. The kubelet has no certificate to show: then
it can only see that somebody listens, which a pod does when its engine is up. */}}
{{- define "pagewire.podPage" -}}
{{- if eq (index . 0) "mutual" -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ index . 1 }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" (eq (index . 0) "on") }}}
{{- end -}}
{{- end -}}

{{/* How Prometheus meets pods: by the name that stands in their certificate, for it scrapes addresses, and with the same
certificate, for pools that ask for one. */}}
{{- define "pagewire.podScrape" -}}
serverName: {{ required "tls.name has to stand in the certificate" .Values.tls.name | quote }}
ca: {{ include "pagewire.ofSecret" (list .Values.tls.existingSecret "ca.crt") }}
cert: {{ include "pagewire.ofSecret" (list .Values.tls.existingSecret "tls.crt") }}
keySecret: {name: {{ .Values.tls.existingSecret | quote }}, key: tls.key}
{{- end -}}

{{/* How it meets routers: by whichever certificate they show to callers, and with one of edge.clientCa where they ask. */}}
{{- define "pagewire.routerScrape" -}}
{{- if and (not .Values.edge.existingSecret) (not .Values.edge.clientCa) -}}
{{ include "pagewire.podScrape" . }}
{{- else -}}
{{- $own := .Values.monitors.edgeSecret -}}
{{- if .Values.edge.existingSecret -}}
serverName: {{ .Values.monitors.edgeName | quote }}
{{- with $own }}
ca: {{ include "pagewire.ofSecret" (list . "ca.crt") }}
{{- end }}
{{- else -}}
serverName: {{ .Values.tls.name | quote }}
ca: {{ include "pagewire.ofSecret" (list .Values.tls.existingSecret "ca.crt") }}
{{- end }}
{{- if .Values.edge.clientCa }}
cert: {{ include "pagewire.ofSecret" (list $own "tls.crt") }}
keySecret: {name: {{ $own | quote }}, key: tls.key}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagewire.ofSecret" -}}
{secret: {name: {{ index . 0 | quote }}, key: {{ index . 1 }}}}
{{- end -}}

{{/* "true" where KEDA scales a pool, which takes a target: a list of the context and the pool with its defaults. */}}
{{- define "pagewire.isScaled" -}}
{{- $scaling := (index . 1).autoscaling -}}
{{- if and (index . 0).Values.keda.enabled $scaling.enabled (or $scaling.queueS $scaling.kvShare $scaling.tpotS) -}}
true
{{- end -}}
{{- end -}}

{{- define "pagewire.image" -}}
{{- $root := index . 0 -}}
{{- $tag := default $root.Chart.AppVersion $root.Values.image.tag -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ index . 1 }}:{{ $tag }}
{{- end -}}

{{- define "pagewire.secret" -}}
{{- default (include "pagewire.fullname" .) .Values.existingSecret -}}
{{- end -}}

{{/* Settings as TOML, in which JSON's scalars and lists are values. */}}
{{- define "pagewire.toml" -}}
{{- range $name, $value := . }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{/* Settings of routers and pods alike. */}}
{{- define "pagewire.settings" -}}
{{- $settings := dict "cluster" .Values.cluster -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $settings "tls_cert" "/etc/pagewire/tls/tls.crt" -}}
{{- $_ := set $settings "tls_key" "/etc/pagewire/tls/tls.key" -}}
{{- $_ := set $settings "tls_ca" "/etc/pagewire/tls/ca.crt" -}}
{{- $_ := set $settings "tls_name" (required "tls.name has to stand in the certificate" .Values.tls.name) -}}
{{- end -}}
{{- if and .Values.redis.enabled .Values.tls.existingSecret -}}
{{- $_ := set $settings "redis_ca" "/etc/pagewire/tls/ca.crt" -}}
{{- $_ := set $settings "redis_cert" "/etc/pagewire/tls/tls.crt" -}}
{{- $_ := set $settings "redis_key" "/etc/pagewire/tls/tls.key" -}}
{{- end -}}
{{- if and (not .Values.redis.enabled) .Values.externalRedis.caSecret -}}
{{- $_ := set $settings "redis_ca" "/etc/pagewire/redis-ca/ca.crt" -}}
{{- end -}}
{{- if and (not .Values.redis.enabled) .Values.externalRedis.certSecret -}}
{{- $_ := set $settings "redis_cert" "/etc/pagewire/redis-cert/tls.crt" -}}
{{- $_ := set $settings "redis_key" "/etc/pagewire/redis-cert/tls.key" -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{/* Environment of routers and pods alike: what is secret. */}}
{{- define "pagewire.env" -}}
- name: PAGEWIRE_CLUSTER_SECRET
  valueFrom: {secretKeyRef: {name: {{ include "pagewire.secret" . }}, key: cluster-secret}}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "redis.secret" .Subcharts.redis }}, key: redis-password}}
- name: PAGEWIRE_REDIS_URL
  {{- $isTls := not (empty .Subcharts.redis.Values.tls.existingSecret) }}
  {{- if ne $isTls (not (empty .Values.tls.existingSecret)) }}
  {{- fail "tls.existingSecret and redis.tls.existingSecret go together: with TLS no wire of a cluster is in the clear, and Redis takes who shows a certificate" }}
  {{- end }}
  value: {{ ternary "rediss" "redis" $isTls }}://{{ .Subcharts.redis.Values.user }}:$(REDIS_PASSWORD)@{{ include "redis.fullname" .Subcharts.redis }}:6379/0
{{- else }}
- name: PAGEWIRE_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "redis.enabled, or externalRedis.existingSecret" .Values.externalRedis.existingSecret }}
      key: redis-url
{{- end }}
{{- end -}}

{{/* Volumes of routers and pods alike, and where they are mounted. `config` is a ConfigMap. */}}
{{- define "pagewire.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: {name: {{ index . 1 }}}
- name: models
  {{- if not $root.Values.modelVolume }}
  {{- fail "modelVolume says where the models lie: modelVolume: {persistentVolumeClaim: {claimName: models, readOnly: true}}" }}
  {{- end }}
  {{- toYaml $root.Values.modelVolume | nindent 2 }}
- name: tmp
  emptyDir: {}
{{- with $root.Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if and (not $root.Values.redis.enabled) $root.Values.externalRedis.caSecret }}
- name: redis-ca
  secret: {secretName: {{ $root.Values.externalRedis.caSecret }}}
{{- end }}
{{- if and (not $root.Values.redis.enabled) $root.Values.externalRedis.certSecret }}
- name: redis-cert
  secret: {secretName: {{ $root.Values.externalRedis.certSecret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "pagewire.mounts" -}}
- {name: config, mountPath: /etc/pagewire/config, readOnly: true}
- {name: models, mountPath: /models, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/pagewire/tls, readOnly: true}
{{- end }}
{{- if and (not .Values.redis.enabled) .Values.externalRedis.caSecret }}
- {name: redis-ca, mountPath: /etc/pagewire/redis-ca, readOnly: true}
{{- end }}
{{- if and (not .Values.redis.enabled) .Values.externalRedis.certSecret }}
- {name: redis-cert, mountPath: /etc/pagewire/redis-cert, readOnly: true}
{{- end }}
{{- end -}}

{{/* What no process of ours needs: the Kubernetes API, and variables named after services, of which PAGEWIRE_* ones would
be taken for settings. */}}
{{- define "pagewire.podSpec" -}}
serviceAccountName: {{ include "pagewire.fullname" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "pagewire.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "pagewire.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where a pod goes, as a part's values say it. */}}
{{- define "pagewire.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "pagewire.priority" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $named := index . 2 -}}
{{- if $named -}}
priorityClassName: {{ $named }}
{{- else if $root.Values.priorityClasses.create -}}
priorityClassName: {{ include "pagewire.fullname" $root }}-{{ ternary "decode" $kind (eq $kind "colocated") }}
{{- end -}}
{{- end -}}

{{/* Pods that hold KV, in one domain of the fast link: they ship it to each other. */}}
{{- define "pagewire.fastLink" -}}
topologyKey: {{ .Values.fastLink.topologyKey }}
labelSelector:
  matchLabels:
    app.kubernetes.io/instance: {{ .Release.Name }}
    pagewire.io/holds-kv: "true"
{{- end -}}

{{- define "pagewire.holdsKv" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
pagewire.io/holds-kv: "true"
{{- end -}}

{{/* What routers and pods alike may reach: names, Redis, and what else was said. */}}
{{- define "pagewire.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- if .Values.redis.enabled }}
- ports:
    - {port: 6379}
  to:
    - podSelector:
        matchLabels: {{- include "redis.selector" .Subcharts.redis | nindent 10 }}
{{- else }}
- ports:
    - {port: {{ .Values.externalRedis.port }}}
{{- end }}
{{- with .Values.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end -}}
