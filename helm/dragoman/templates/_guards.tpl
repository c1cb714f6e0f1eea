{{- /* Combinations that cannot work. Each message begins with the value that is wrong. */ -}}
{{- define "dragoman.guards" -}}
{{- $v := .Values -}}
{{- $models := include "dragoman.models" . | fromJson -}}
{{- $config := $v.gateway.config -}}

{{- if not $v.models -}}{{- fail "models: name at least one model" -}}{{- end -}}

{{- if eq $v.auth.mode "keys" -}}
  {{- if not (or $v.auth.existingSecret $config.jwt) -}}{{- fail "auth.existingSecret: name the Secret with the keys, set gateway.config.jwt, or let everybody in with auth.mode: open" -}}{{- end -}}
{{- else -}}
  {{- if $v.auth.existingSecret -}}{{- fail "auth.existingSecret: has no effect with auth.mode: open" -}}{{- end -}}
  {{- if $config.jwt -}}{{- fail "gateway.config.jwt: has no effect with auth.mode: open" -}}{{- end -}}
  {{- if $config.cache_salt -}}{{- fail "gateway.config.cache_salt: has no effect with auth.mode: open, where all callers are one" -}}{{- end -}}
{{- end -}}

{{- if and $v.console.enabled (not $v.console.existingSecret) -}}{{- fail "console.existingSecret: name the Secret with the console's key: other Pods can call its port" -}}{{- end -}}
{{- if and $v.console.existingSecret (not $v.console.enabled) -}}{{- fail "console.existingSecret: has no effect without console.enabled" -}}{{- end -}}

{{- if not $v.image.repository -}}{{- fail "image.repository: name the gateway's image" -}}{{- end -}}
{{- $external := $v.redis.external -}}
{{- if and (include "dragoman.redisPassword" .) (not $v.redis.existingSecret) -}}
  {{- fail "redis.existingSecret: name the Secret with the password of Redis, or do without it with redis.mode: none" -}}
{{- end -}}
{{- if and (eq $v.redis.mode "external") (not $external.addresses) -}}{{- fail "redis.external.addresses: say where the external Redis is" -}}{{- end -}}
{{- if and (ne $v.redis.mode "external") $external.addresses -}}{{- fail "redis.external.addresses: has no effect without redis.mode: external" -}}{{- end -}}
{{- if and $external.noPassword $v.redis.existingSecret -}}{{- fail "redis.external.noPassword: contradicts redis.existingSecret" -}}{{- end -}}
{{- if and $external.caSecret.name (not $external.tls) -}}{{- fail "redis.external.caSecret: has no effect without redis.external.tls" -}}{{- end -}}
{{- if and (eq $external.topology "cluster") $external.db -}}{{- fail "redis.external.db: a cluster has database 0 alone" -}}{{- end -}}
{{- if eq $v.redis.mode "none" -}}
  {{- if and $config.limits (or (gt (int $v.gateway.replicas) 1) $v.gateway.autoscaling.enabled) -}}
    {{- fail "gateway.config.limits: without Redis each gateway counts for itself; set redis.mode, or gateway.replicas: 1" -}}
  {{- end -}}
  {{- if and $config.accounting $config.accounting.redis_stream -}}{{- fail "gateway.config.accounting.redis_stream: needs Redis; set redis.mode" -}}{{- end -}}
  {{- if and $config.store (eq (toString $config.store.where) "redis") -}}{{- fail "gateway.config.store.where: needs Redis; set redis.mode" -}}{{- end -}}
{{- end -}}

{{- with $v.gateway.autoscaling -}}
  {{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}{{- fail "gateway.autoscaling.minReplicas: is more than maxReplicas" -}}{{- end -}}
{{- end -}}
{{- if and $v.redis.valkey.persistence.enabled (ne $v.redis.mode "valkey") -}}{{- fail "redis.valkey.persistence.enabled: has no effect without redis.mode: valkey" -}}{{- end -}}

{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}{{- fail "ingress.hosts: name at least one host" -}}{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.hosts) -}}{{- fail "httpRoute.hosts: name at least one host" -}}{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}{{- fail "httpRoute.parentRefs: name the Gateway that carries the routes" -}}{{- end -}}
{{- range $where := list "ingress" "httpRoute" -}}
  {{- range $index, $host := (get $v $where).hosts -}}
    {{- range $dialect := default list $host.dialects -}}
      {{- $options := get (default dict $config.dialects) $dialect | default dict -}}
      {{- if eq (toString $options.enabled) "false" -}}{{- fail (printf "%s.hosts[%d].dialects: %s is not enabled in gateway.config.dialects" $where $index $dialect) -}}{{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.test.model (not (hasKey $v.models $v.test.model)) -}}{{- fail (printf "test.model: there is no model %s" $v.test.model) -}}{{- end -}}

{{- $slugs := dict -}}
{{- range $name, $model := $models -}}
  {{- $at := printf "models.%s" $name -}}
  {{- $others := get $slugs $model.slug -}}
  {{- if $others -}}{{- fail (printf "%s: its objects would have the names of those of models.%s" $at $others) -}}{{- end -}}
  {{- $_ := set $slugs $model.slug $name -}}
  {{- if has $model.slug (list "metrics" "valkey" "completions") -}}{{- fail (printf "%s: is the name of another object of the chart" $at) -}}{{- end -}}
  {{- if and $model.sequences (hasKey $model.gateway "max_in_flight") -}}{{- fail (printf "%s.gateway.max_in_flight: is set by sequences already" $at) -}}{{- end -}}
  {{- if and $model.caSecret.name $model.runs -}}{{- fail (printf "%s.caSecret: has no effect without urls" $at) -}}{{- end -}}
  {{- if and $model.runs (hasKey (default dict (get $v.models $name)) "backend") -}}{{- fail (printf "%s.backend: has no effect without urls; the chart's own workers are chosen by engine" $at) -}}{{- end -}}
  {{- if not $model.runs -}}
    {{- if $model.model -}}{{- fail (printf "%s.model: has no effect beside urls; the workers' own name is gateway.upstream_model" $at) -}}{{- end -}}
    {{- if $model.autoscaling.enabled -}}{{- fail (printf "%s.autoscaling.enabled: the chart does not run the workers at urls" $at) -}}{{- end -}}
    {{- if gt (int $model.nodes) 1 -}}{{- fail (printf "%s.nodes: the chart does not run the workers at urls" $at) -}}{{- end -}}
    {{- if $model.kvEvents.enabled -}}{{- fail (printf "%s.kvEvents.enabled: the chart does not run the workers at urls; set gateway.kv_events and their own flag" $at) -}}{{- end -}}
  {{- else -}}
    {{- include "dragoman.guardWorkers" (dict "root" $ "at" $at "model" $model) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of a model whose workers the chart runs. */ -}}
{{- define "dragoman.guardWorkers" -}}
{{- $v := .root.Values -}}{{- $at := .at -}}{{- $model := .model -}}{{- $cache := $model.cache -}}
{{- $several := or (gt (int $model.replicas) 1) (gt (int $model.nodes) 1) $model.autoscaling.enabled -}}
{{- if eq $model.engine "vllm" -}}
  {{- if not $model.model -}}{{- fail (printf "%s.model: name the model, or say in urls where its workers are" $at) -}}{{- end -}}
  {{- $own := list "--model" "--served-model-name" "--host" "--port" "--uds" "--grace" "--start-timeout" "--register" "--redis-password-file" "--redis-ca-file" "--max-num-seqs" "--api-key" "--nnodes" "--node-rank" "--master-addr" "--headless" -}}
  {{- range $flag := $own -}}
    {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list $flag)) -}}{{- fail (printf "%s.args: the chart sets %s itself" $at $flag) -}}{{- end -}}
  {{- end -}}
  {{- if and $model.loadsNothing (not (hasPrefix "/" $model.model)) (eq $cache.mode "emptyDir") -}}
    {{- fail (printf "%s.cache.mode: an emptyDir starts empty and nothing may be loaded into it; choose pvc, hostPath or image" $at) -}}
  {{- end -}}
  {{- if and (hasPrefix "/" $model.model) (not (hasPrefix (printf "%s/" (trimSuffix "/" $cache.mountPath)) $model.model)) (ne $model.model $cache.mountPath) -}}
    {{- fail (printf "%s.model: is a folder outside cache.mountPath, which is all that is mounted" $at) -}}
  {{- end -}}
{{- else -}}
  {{- range $flag := list "--host" "--port" "--name" "--model-file" "--grace" "--parallel" -}}
    {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list $flag)) -}}{{- fail (printf "%s.args: the chart sets %s itself" $at $flag) -}}{{- end -}}
  {{- end -}}
  {{- if eq $model.discovery "redis" -}}{{- fail (printf "%s.discovery: embedded workers enter no registry; leave it at auto" $at) -}}{{- end -}}
  {{- if gt (int $model.nodes) 1 -}}{{- fail (printf "%s.nodes: an embedded worker runs on one machine" $at) -}}{{- end -}}
  {{- if $model.apiKeySecret.name -}}{{- fail (printf "%s.apiKeySecret: embedded workers ask for no key" $at) -}}{{- end -}}
{{- end -}}
{{- if hasKey $model.gateway "kv_events" -}}
  {{- $ranks := list "--data-parallel-size" "-dp" "--data-parallel-size-local" "-dpl" "--data-parallel-start-rank" "-dpr" -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" $ranks) -}}
    {{- fail (printf "%s.args: data parallel ranks behind one address each publish what they cached, and the gateway cannot choose the rank; do without kvEvents and gateway.kv_events" $at) -}}
  {{- end -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--no-enable-prefix-caching")) -}}
    {{- fail (printf "%s.args: an engine without a prefix cache tells nothing of it; do without kvEvents and gateway.kv_events" $at) -}}
  {{- end -}}
{{- end -}}
{{- $events := $model.kvEvents -}}
{{- if $events.enabled -}}
  {{- if ne $model.engine "vllm" -}}{{- fail (printf "%s.kvEvents.enabled: embedded workers do not tell what they have cached" $at) -}}{{- end -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--kv-events-config")) -}}{{- fail (printf "%s.args: --kv-events-config is set by kvEvents already" $at) -}}{{- end -}}
  {{- if ne (toJson $model.gateway.kv_events) (toJson (dict "port" (int $events.port) "replay_port" (int $events.replayPort))) -}}
    {{- fail (printf "%s.gateway.kv_events: is set by kvEvents already" $at) -}}
  {{- end -}}
  {{- if or (eq (int $events.port) (int $events.replayPort)) (has 8000 (list (int $events.port) (int $events.replayPort))) -}}
    {{- fail (printf "%s.kvEvents.replayPort: it, kvEvents.port and 8000, where requests go, must differ" $at) -}}
  {{- end -}}
  {{- if ne (default "prefix" $model.gateway.policy) "prefix" -}}{{- fail (printf "%s.kvEvents.enabled: has no effect with gateway.policy: %s" $at $model.gateway.policy) -}}{{- end -}}
  {{- if $v.ipv6 -}}{{- fail (printf "%s.kvEvents.enabled: vLLM publishes over IPv4 alone; it cannot be joined with ipv6" $at) -}}{{- end -}}
{{- end -}}
{{- if hasKey $model.gateway "upstream_model" -}}{{- fail (printf "%s.gateway.upstream_model: the chart's own workers serve the model under its name here" $at) -}}{{- end -}}
{{- if and (eq $model.discovery "redis") (eq $v.redis.mode "none") -}}{{- fail (printf "%s.discovery: the registry needs Redis; set redis.mode" $at) -}}{{- end -}}
{{- if and (eq $model.discovery "redis") (eq $v.redis.mode "external") (ne $v.redis.external.topology "single") -}}
  {{- fail (printf "%s.discovery: workers register with one server, not with Sentinels or a cluster; choose dns" $at) -}}
{{- end -}}
{{- if and (eq $cache.mode "hostPath") (not $cache.hostPath) -}}{{- fail (printf "%s.cache.hostPath: name the folder on the node" $at) -}}{{- end -}}
{{- if eq $cache.mode "image" -}}
  {{- if not $cache.image -}}{{- fail (printf "%s.cache.image: name the image with the weights" $at) -}}{{- end -}}
  {{- if semverCompare "<1.33.0-0" .root.Capabilities.KubeVersion.Version -}}{{- fail (printf "%s.cache.mode: image volumes need Kubernetes 1.33" $at) -}}{{- end -}}
{{- end -}}
{{- if and (eq $cache.mode "pvc") $several (hasPrefix "ReadWriteOnce" $cache.accessMode) (not $cache.existingClaim) -}}
  {{- fail (printf "%s.cache.accessMode: several Pods share the claim; choose ReadWriteMany or ReadOnlyMany, or cache.mode: claimPerReplica" $at) -}}
{{- end -}}
{{- if and (has $cache.mode (list "emptyDir" "claimPerReplica")) $cache.readOnly -}}{{- fail (printf "%s.cache.readOnly: an empty cache that nobody may write stays empty" $at) -}}{{- end -}}
{{- if gt (int $model.nodes) 1 -}}
  {{- if lt (int $model.gpus) 1 -}}{{- fail (printf "%s.gpus: a group of Pods needs a GPU in each" $at) -}}{{- end -}}
  {{- if eq $cache.mode "claimPerReplica" -}}{{- fail (printf "%s.cache.mode: claimPerReplica makes a StatefulSet, which is no group of nodes" $at) -}}{{- end -}}
{{- end -}}
{{- if $model.autoscaling.enabled -}}
  {{- if not $v.monitoring.prometheusAddress -}}{{- fail (printf "monitoring.prometheusAddress: KEDA needs it for %s.autoscaling.enabled" $at) -}}{{- end -}}
  {{- if gt (int $model.autoscaling.minReplicas) (int $model.autoscaling.maxReplicas) -}}{{- fail (printf "%s.autoscaling.minReplicas: is more than maxReplicas" $at) -}}{{- end -}}
  {{- if eq $model.kind "RayCluster" -}}{{- fail (printf "%s.autoscaling.enabled: a RayCluster cannot be scaled by KEDA; choose multiNode: LeaderWorkerSet" $at) -}}{{- end -}}
  {{- if eq $model.engine "embedded" -}}{{- fail (printf "%s.autoscaling.enabled: an embedded worker has none of vLLM's figures" $at) -}}{{- end -}}
{{- end -}}
{{- end -}}
