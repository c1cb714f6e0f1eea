{{- /* Pods of workers. All take (dict "root" $ "name" NAME "model" MODEL), MODEL from dragoman.models. */ -}}

{{- define "dragoman.workerSelector" -}}
{{ include "dragoman.selector" (dict "root" .root "component" "worker" "model" .model.slug) }}
{{- end -}}

{{- define "dragoman.workerLabels" -}}
{{ include "dragoman.labels" (dict "root" .root "component" "worker" "model" .model.slug) }}
{{- end -}}

{{- /* Labels and annotations of a workload, "annotations" being the chart's own. */ -}}
{{- define "dragoman.workloadMetadata" -}}
labels:
  {{- include "dragoman.labels" (dict "root" .root "component" "worker" "model" .model.slug "extra" .model.labels) | nindent 2 }}
{{- with merge (default dict .annotations) .model.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Labels of the Pods that answer requests (of a group, its leader) or of those that only compute ("rank"). */ -}}
{{- define "dragoman.workerPodLabels" -}}
{{ include "dragoman.podLabels" (dict "root" .root "component" "worker" "model" .model.slug "extra" .model.podLabels) }}
dragoman-role: {{ default "leader" .role }}
{{- end -}}

{{- /* --grace: what is left of stopSeconds when the preStop pause (at most 10 s) and the engine's own end (30 s) are taken off. */ -}}
{{- define "dragoman.graceSeconds" -}}{{ sub (int .model.stopSeconds) 40 }}{{- end -}}

{{- /* "true" where `args` has one of `flags`, in any way that vLLM reads: `--flag`, `--flag=VALUE`, `--flag.KEY=VALUE`, with _ for -.
(dict "args" LIST "flags" LIST) */ -}}
{{- define "dragoman.hasFlag" -}}
{{- range $arg := .args -}}{{- range $flag := $.flags -}}
{{- $word := first (splitList "=" $arg) | replace "_" "-" -}}
{{- if or (eq $word $flag) (hasPrefix (printf "%s." $flag) $word) }}true{{ end -}}
{{- end -}}{{- end -}}
{{- end -}}

{{- /* The last value that `args` give a flag under one of its names, "" if there is none. (dict "args" LIST "flags" LIST) */ -}}
{{- define "dragoman.flagValue" -}}
{{- $value := "" -}}{{- $next := false -}}
{{- range $arg := .args -}}
  {{- $words := splitn "=" 2 $arg -}}
  {{- if $next -}}{{- $value = $arg -}}{{- end -}}
  {{- $next = has (replace "_" "-" $words._0) $.flags -}}
  {{- if and $next (contains "=" $arg) -}}{{- $value = $words._1 -}}{{- $next = false -}}{{- end -}}
{{- end -}}
{{- $value -}}
{{- end -}}

{{- /* vLLM's flags that every Pod of a model shares, as a list in JSON. */ -}}
{{- define "dragoman.engineFlags" -}}
{{- $model := .model -}}
{{- $flags := list "--served-model-name" .name -}}
{{- $spread := list "--tensor-parallel-size" "-tp" "--pipeline-parallel-size" "-pp" "--data-parallel-size" "-dp" -}}
{{- /* A slice of a GPU, or a share of its time, talks to no other one: a model is not split over them. */ -}}
{{- $sliced := regexMatch "/mig-|[.]shared$" $model.gpuResource -}}
{{- if not (or $sliced (include "dragoman.hasFlag" (dict "args" $model.args "flags" $spread))) -}}
  {{- if gt (int $model.gpus) 1 -}}{{- $flags = concat $flags (list "--tensor-parallel-size" (toString $model.gpus)) -}}{{- end -}}
  {{- if gt (int $model.nodes) 1 -}}{{- $flags = concat $flags (list "--pipeline-parallel-size" (toString $model.nodes)) -}}{{- end -}}
{{- end -}}
{{- if $model.sequences -}}{{- $flags = concat $flags (list "--max-num-seqs" (toString $model.sequences)) -}}{{- end -}}
{{- with $model.kvEvents -}}{{- if .enabled -}}
  {{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" (printf "tcp://*:%d" (int .port)) "replay_endpoint" (printf "tcp://*:%d" (int .replayPort)) "buffer_steps" (int .bufferSteps) -}}
  {{- $flags = concat $flags (list "--kv-events-config" (toJson $events)) -}}
{{- end -}}{{- end -}}
{{- /* The sampler may run on any node of a group: all of them load the same processor, or none. */ -}}
{{- $own := list "--stock" "--logits-processors" "--speculative-config" "-sc" "--runner" "--task" -}}
{{- if and (eq $model.kind "LeaderWorkerSet") (not (include "dragoman.hasFlag" (dict "args" $model.args "flags" $own))) -}}
  {{- $flags = concat $flags (list "--logits-processors" "workers.vllm.processors:Sequences") -}}
{{- end -}}
{{- concat $flags $model.args | toJson -}}
{{- end -}}

{{- /* Flags of `dragoman worker`, as a list in JSON. */ -}}
{{- define "dragoman.workerFlags" -}}
{{- $model := .model -}}
{{- if eq $model.engine "embedded" -}}
  {{- $flags := list "--host" (ternary "::" "0.0.0.0" .root.Values.ipv6) "--port" "8000" "--name" .name -}}
  {{- if $model.model -}}{{- $flags = concat $flags (list "--model-file" $model.model) -}}{{- end -}}
  {{- $flags = concat $flags (list "--grace" (include "dragoman.graceSeconds" .)) -}}
  {{- if $model.sequences -}}{{- $flags = concat $flags (list "--parallel" (toString $model.sequences)) -}}{{- end -}}
  {{- concat $flags $model.args | toJson -}}
{{- else -}}
  {{- $flags := list "--model" $model.model "--port" "8000" -}}
  {{- if .root.Values.ipv6 -}}{{- $flags = concat $flags (list "--host" "::") -}}{{- end -}}
  {{- $flags = concat $flags (list "--grace" (include "dragoman.graceSeconds" .) "--start-timeout" (toString $model.loadTimeout)) -}}
  {{- if $model.registers -}}
    {{- $flags = concat $flags (include "dragoman.registryFlags" .root | fromJsonArray) -}}
  {{- end -}}
  {{- concat $flags (include "dragoman.engineFlags" . | fromJsonArray) | toJson -}}
{{- end -}}
{{- end -}}

{{- define "dragoman.registryFlags" -}}
{{- $external := eq .Values.redis.mode "external" -}}
{{- $given := .Values.redis.external -}}
{{- $user := ternary (default $given.username $given.workers.username) "" $external -}}
{{- $scheme := ternary "rediss" "redis" (and $external $given.tls) -}}
{{- $database := ternary (int $given.db) 0 $external -}}
{{- $url := printf "%s://%s%s/%d" $scheme (ternary (printf "%s@" $user) "" (ne $user "")) (include "dragoman.redisAddresses" . | fromJsonArray | first) $database -}}
{{- $flags := list "--register" $url "--namespace" (include "dragoman.redisNamespace" .) -}}
{{- if include "dragoman.redisPassword" . -}}
  {{- $flags = concat $flags (list "--redis-password-file" (printf "/run/dragoman/redis/%s" .Values.redis.passwordKey)) -}}
{{- end -}}
{{- if and $external $given.caSecret.name -}}
  {{- $flags = concat $flags (list "--redis-ca-file" (printf "/run/dragoman/redis-ca/%s" $given.caSecret.key)) -}}
{{- end -}}
{{- toJson $flags -}}
{{- end -}}

{{- /* Environment of every container of a model. */ -}}
{{- define "dragoman.workerEnv" -}}
{{- $model := .model -}}
{{- $written := and (ne $model.cache.mode "image") (not $model.cache.readOnly) -}}
# No user of the image has this number: libraries that look up a name or a home find these.
- name: HOME
  value: /tmp
- name: USER
  value: dragoman
{{- if eq $model.engine "vllm" }}
{{- if $written }}
- name: HF_HOME
  value: {{ $model.cache.mountPath }}/huggingface
- name: VLLM_CACHE_ROOT
  value: {{ $model.cache.mountPath }}/vllm
{{- end }}
{{- if $model.loadsNothing }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- with $model.hubTokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $model.hubTokenKey }}
{{- end }}
{{- if and $model.apiKeySecret.name (ne (default "" .role) "rank") }}
- name: VLLM_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ $model.apiKeySecret.name }}
      key: {{ $model.apiKeySecret.key }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Requests and limits: the model's own, and its GPUs. A Pod without any request would be the first that a full node
evicts: an amount that the model leaves out is its engine's. */ -}}
{{- define "dragoman.workerResources" -}}
{{- $resources := deepCopy .model.resources -}}
{{- $requests := default dict $resources.requests -}}
{{- range $name, $least := ternary (dict "cpu" "1" "memory" "1Gi") (dict "cpu" "2" "memory" "8Gi") (eq .model.engine "embedded") -}}
  {{- /* Kubernetes takes a limit without a request for the request. */ -}}
  {{- if not (hasKey (default dict $resources.limits) $name) -}}{{- $requests = merge $requests (dict $name $least) -}}{{- end -}}
{{- end -}}
{{- with $requests -}}{{- $_ := set $resources "requests" . -}}{{- end -}}
{{- if and (gt (int .model.gpus) 0) (eq .model.engine "vllm") -}}
  {{- $_ := set $resources "limits" (merge (dict .model.gpuResource (int .model.gpus)) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* "true" for a Pod that registers; those of a group that only compute call nobody outside it. */ -}}
{{- define "dragoman.callsRedis" -}}
{{- if and .model.registers (ne (default "" .role) "rank") }}true{{ end -}}
{{- end -}}

{{- define "dragoman.workerMounts" -}}
- name: cache
  mountPath: {{ .model.cache.mountPath }}
  {{- if or .model.cache.readOnly (eq .model.cache.mode "image") }}
  readOnly: true
  {{- end }}
- name: shm
  mountPath: /dev/shm
- name: tmp
  mountPath: /tmp
{{- if include "dragoman.callsRedis" . }}
{{- if include "dragoman.redisPassword" .root }}
- name: redis
  mountPath: /run/dragoman/redis
  readOnly: true
{{- end }}
{{- if and (eq .root.Values.redis.mode "external") .root.Values.redis.external.caSecret.name }}
- name: redis-ca
  mountPath: /run/dragoman/redis-ca
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "dragoman.workerVolumes" -}}
{{- $cache := .model.cache -}}
{{- if eq $cache.mode "emptyDir" }}
- name: cache
  emptyDir:
    sizeLimit: {{ $cache.size }}
{{- else if eq $cache.mode "pvc" }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-cache" .model.object) $cache.existingClaim }}
    {{- if $cache.readOnly }}
    readOnly: true
    {{- end }}
{{- else if eq $cache.mode "hostPath" }}
- name: cache
  hostPath:
    path: {{ $cache.hostPath }}
    type: {{ ternary "Directory" "DirectoryOrCreate" $cache.readOnly }}
{{- else if eq $cache.mode "image" }}
- name: cache
  image:
    reference: {{ $cache.image }}
    pullPolicy: {{ .model.image.pullPolicy }}
{{- end }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .model.shm }}
- name: tmp
  emptyDir: {}
{{- if include "dragoman.callsRedis" . }}
{{- $redis := .root.Values.redis }}
{{- if include "dragoman.redisPassword" .root }}
- name: redis
  secret:
    secretName: {{ ternary (default $redis.existingSecret $redis.external.workers.existingSecret) $redis.existingSecret (eq $redis.mode "external") }}
{{- end }}
{{- if and (eq $redis.mode "external") $redis.external.caSecret.name }}
- name: redis-ca
  secret:
    secretName: {{ $redis.external.caSecret.name }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The container that answers requests. `command`, where given, stands instead of `dragoman worker` with its flags. */ -}}
{{- define "dragoman.workerContainer" -}}
{{- $model := .model -}}
name: worker
image: {{ include "dragoman.image" (dict "root" .root "image" $model.image) | quote }}
imagePullPolicy: {{ $model.image.pullPolicy }}
{{- if .command }}
{{ .command }}
{{- else }}
command: [dragoman, worker, {{ $model.engine }}]
args:
  {{- range include "dragoman.workerFlags" . | fromJsonArray }}
  - {{ . | quote }}
  {{- end }}
  {{- with .more }}
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
  {{- end }}
{{- end }}
env:
  {{- include "dragoman.workerEnv" . | nindent 2 }}
ports:
  - name: http
    containerPort: 8000
# Until it succeeds, neither of the other probes is asked.
startupProbe:
  httpGet:
    path: /health
    port: http
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ div (add (int $model.loadTimeout) 9) 10 }}
# A busy engine answers late and must not be killed for it; one that died ends its container by itself.
livenessProbe:
  httpGet:
    path: /health
    port: http
  periodSeconds: 15
  timeoutSeconds: 15
  failureThreshold: 8
readinessProbe:
  httpGet:
    path: /health
    port: http
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- if not $model.registers }}
lifecycle:
  preStop:
    # A worker in the registry says itself that it leaves. Of this one the gateways learn by DNS, which takes a while.
    sleep:
      seconds: 10
{{- end }}
securityContext:
  {{- include "dragoman.containerSecurity" .root | nindent 2 }}
resources:
  {{- include "dragoman.workerResources" . | nindent 2 }}
volumeMounts:
  {{- include "dragoman.workerMounts" . | nindent 2 }}
{{- end -}}

{{- /* Of a group, a Pod that computes and answers nobody. `start` is its command. */ -}}
{{- define "dragoman.rankContainer" -}}
name: worker
image: {{ include "dragoman.image" (dict "root" .root "image" .model.image) | quote }}
imagePullPolicy: {{ .model.image.pullPolicy }}
{{ .start }}
env:
  {{- include "dragoman.workerEnv" . | nindent 2 }}
lifecycle:
  preStop:
    # A group is deleted at once: its leader drains with the help of this one.
    sleep:
      seconds: {{ add (int (include "dragoman.graceSeconds" .)) 10 }}
securityContext:
  {{- include "dragoman.containerSecurity" .root | nindent 2 }}
resources:
  {{- include "dragoman.workerResources" . | nindent 2 }}
volumeMounts:
  {{- include "dragoman.workerMounts" . | nindent 2 }}
{{- end -}}

{{- /* The template of a Pod around one container. (… "role" "leader"|"rank" "container" TEXT) */ -}}
{{- define "dragoman.workerPod" -}}
{{- $own := deepCopy .model -}}
{{- if and (gt (int $own.gpus) 0) (eq $own.engine "vllm") -}}
  {{- /* Past the taint that keeps others off its GPUs. */ -}}
  {{- $_ := set $own "tolerations" (append $own.tolerations (dict "key" $own.gpuResource "operator" "Exists" "effect" "NoSchedule")) -}}
{{- end -}}
{{- include "dragoman.pod" (dict "own" $own "pod" (include "dragoman.barePod" .) "rank" (eq (default "" .role) "rank")) -}}
{{- end -}}

{{- define "dragoman.barePod" -}}
metadata:
  labels:
    {{- include "dragoman.workerPodLabels" . | nindent 4 }}
spec:
  {{- include "dragoman.podSecurity" (dict "root" .root "own" .model "name" .model.object) | nindent 2 }}
  terminationGracePeriodSeconds: {{ .model.stopSeconds }}
  containers:
    - {{ .container | nindent 6 | trim }}
  volumes:
    {{- include "dragoman.workerVolumes" . | trim | nindent 4 }}
{{- end -}}
