{{- define "pagewire.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full = default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "%s cannot be a Service's name, which is of small letters, digits and dashes and begins with a letter: another release, or fullnameOverride" $full) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* Labels that select the pods of a part: a list of the context and the part. */}}
{{- define "pagewire.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 | quote }}
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
{{- /* Of a budget, which says one of two things, Helm would make one that says both; what null says it would forget. */}}
{{- if hasKey (index . 1) "podDisruptionBudget" -}}
{{- $_ := set $pool "podDisruptionBudget" (index . 1).podDisruptionBudget -}}
{{- end -}}
{{- toJson $pool -}}
{{- end -}}

{{/* Refuses pools of a model that no router knows, a cluster that could not answer, and names that are no one's alone. */}}
{{- define "pagewire.checkPools" -}}
{{- $root := . -}}
{{- $decoded := dict -}}
{{- range $name, $given := .Values.pools -}}
{{- $pool := include "pagewire.pool" (list $root $given) | fromJson -}}
{{- if not (has $pool.model $root.Values.models) -}}
{{- fail (printf "the model %s of the pool %s is none of models" $pool.model $name) -}}
{{- end -}}
{{- if ne $pool.role "prefill" }}{{ $_ := set $decoded $pool.model $name }}{{ end -}}
{{- $bare := list -}}
{{- range splitList "," (nospace (dig "transports" "auto" $pool.settings)) -}}
{{- if has . (list "tcp" "collective" "nixl") }}{{ $bare = append $bare . }}{{ end -}}
{{- end -}}
{{- if and $bare $root.Values.tls.existingSecret -}}
{{- fail (printf "transports of the pool %s: %s sends in the clear, which nothing does with tls.existingSecret" $name (join ", " $bare)) -}}
{{- end -}}
{{- end -}}
{{- $names := dict -}}
{{- range .Values.models -}}
{{- if hasKey $names (base .) -}}
{{- fail (printf "models %s and %s: both would be called %s, after their folder" (get $names (base .)) . (base .)) -}}
{{- end -}}
{{- $_ := set $names (base .) . -}}
{{- if not (hasKey $decoded .) -}}
{{- fail (printf "no pool decodes %s: it takes one of that model whose role is decode or colocated" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.redis.enabled (eq (include "pagewire.fullname" .) (include "redis.fullname" .Subcharts.redis)) -}}
{{- fail (printf "%s is the name of the release's Redis: another nameOverride or fullnameOverride" (include "pagewire.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{/* A part's disruption budget, if it has one: a list of the context, the part and what its values say. Nothing said: one
pod at a time. */}}
{{- define "pagewire.budget" -}}
{{- $root := index . 0 -}}
{{- if not (kindIs "invalid" (index . 2)) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "pagewire.fullname" $root }}-{{ index . 1 }}
  labels: {{- include "pagewire.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  {{- index . 2 | default (dict "maxUnavailable" 1) | toYaml | nindent 2 }}
  selector:
    matchLabels: {{- include "pagewire.selector" (list $root (index . 1)) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* How many replicas one has that something else scales: as many as there are. Without the field an upgrade that turns
scaling on would have Kubernetes fall back to one. A list of the context, a kind and a name. */}}
{{- define "pagewire.scaledReplicas" -}}
{{- with lookup "apps/v1" (index . 1) (index . 0).Release.Namespace (index . 2) }}
replicas: {{ .spec.replicas }}
{{- end }}
{{- end -}}

{{/* True of pools that compute on a GPU, by their image or by what they are told. */}}
{{- define "pagewire.isOnGpu" -}}
{{- $device := dig "device" (ternary "cuda" "cpu" (hasSuffix "-cuda" .image)) .settings -}}
{{- if hasPrefix "cuda" $device }}true{{ end -}}
{{- end -}}

{{/* Seconds that a pod takes at most to leave its KV on a disk: what it allows itself, EXIT_GRACE_S of engine/client.py
aside, which every pod has. */}}
{{- define "pagewire.keepS" -}}
{{- $kept_bytes_per_s := 268435456.0 -}}
{{- $told := dig "kv_memory" "1GiB" .settings -}}
{{- $bytes := $told -}}
{{- if kindIs "string" $told -}}
{{- $bytes = regexFind "[0-9.]+" $told | float64 -}}
{{- $power := index (dict "" 0 "K" 1 "M" 2 "G" 3 "T" 4) (regexFind "[KMGT]" (upper $told)) -}}
{{- range until $power }}{{ $bytes = mulf $bytes (ternary 1024.0 1000.0 (contains "I" (upper $told))) }}{{ end -}}
{{- end -}}
{{- default (max 60 (ceil (divf $bytes $kept_bytes_per_s))) .kvVolume.keepS -}}
{{- end -}}

{{/* Environment, and what a part's values set: a variable of the chart's in its place, for others may refer to it and
twice is refused, all else behind it. A list of the environment as YAML and the part's own. */}}
{{- define "pagewire.environment" -}}
{{- $own := dict -}}
{{- range index . 1 }}{{ $_ := set $own .name . }}{{ end -}}
{{- $all := list -}}
{{- range (index . 0 | fromYamlArray) -}}
{{- $all = append $all (get $own .name | default .) -}}
{{- $_ := unset $own .name -}}
{{- end -}}
{{- range index . 1 -}}
{{- if hasKey $own .name }}{{ $all = append $all . }}{{ end -}}
{{- end -}}
{{- toYaml $all -}}
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
  valueFrom: {secretKeyRef: {name: {{ include "pagewire.secret" . | quote }}, key: cluster-secret}}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "redis.secret" .Subcharts.redis | quote }}, key: redis-password}}
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
      name: {{ required "redis.enabled, or externalRedis.existingSecret" .Values.externalRedis.existingSecret | quote }}
      key: redis-url
{{- end }}
{{- end -}}

{{/* Environment of a pod: a list of the context and the pool with its defaults. Beside a GPU an engine computes on one
thread by itself. */}}
{{- define "pagewire.podEnv" -}}
- name: PAGEWIRE_HOST
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: PAGEWIRE_PORT, value: "50051"}
- {name: PAGEWIRE_SOCKET_PORT, value: "50052"}
- {name: PAGEWIRE_METRICS_PORT, value: "9100"}
- name: PAGEWIRE_POD_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if not (or (hasKey (index . 1).settings "threads") (include "pagewire.isOnGpu" (index . 1))) }}
- name: PAGEWIRE_THREADS
  valueFrom: {resourceFieldRef: {resource: requests.cpu}}
{{- end }}
{{ include "pagewire.env" (index . 0) }}
{{- end -}}

{{- define "pagewire.routerEnv" -}}
- {name: PAGEWIRE_HOST, value: 0.0.0.0}
- {name: PAGEWIRE_PORT, value: "8000"}
- {name: PAGEWIRE_GRPC_PORT, value: "50050"}
- name: PAGEWIRE_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PAGEWIRE_OPERATOR_KEY
  valueFrom: {secretKeyRef: {name: {{ include "pagewire.secret" . | quote }}, key: operator-key, optional: true}}
{{ include "pagewire.env" . }}
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
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- if and (not $root.Values.redis.enabled) $root.Values.externalRedis.caSecret }}
- name: redis-ca
  secret: {secretName: {{ $root.Values.externalRedis.caSecret | quote }}}
{{- end }}
{{- if and (not $root.Values.redis.enabled) $root.Values.externalRedis.certSecret }}
- name: redis-cert
  secret: {secretName: {{ $root.Values.externalRedis.certSecret | quote }}, defaultMode: 0440}
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
serviceAccountName: {{ include "pagewire.fullname" . | quote }}
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
priorityClassName: {{ $named | quote }}
{{- else if $root.Values.priorityClasses.create -}}
priorityClassName: {{ include "pagewire.fullname" $root }}-{{ ternary "decode" $kind (eq $kind "colocated") }}
{{- end -}}
{{- end -}}

{{/* Pods that hold KV, in one domain of the fast link: they ship it to each other. */}}
{{- define "pagewire.fastLink" -}}
topologyKey: {{ .Values.fastLink.topologyKey | quote }}
labelSelector:
  matchLabels:
    {{- include "pagewire.holdsKv" . | nindent 4 }}
{{- end -}}

{{- define "pagewire.holdsKv" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
