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
  {{- range $name := list "cache_salt" "seal" -}}
    {{- if index $config $name -}}{{- fail (printf "gateway.config.%s: has no effect with auth.mode: open, where all callers are one" $name) -}}{{- end -}}
  {{- end -}}
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
  {{- $of := dict "root" $ "name" $name "model" $model -}}
  {{- $others := get $slugs $model.slug -}}
  {{- if $others -}}{{- fail (printf "%s: its objects would have the names of those of models.%s" $at $others) -}}{{- end -}}
  {{- $_ := set $slugs $model.slug $name -}}
  {{- if has $model.slug (list "metrics" "valkey" "completions") -}}{{- fail (printf "%s: is the name of another object of the chart" $at) -}}{{- end -}}
  {{- if and $model.sequences (hasKey $model.gateway "max_in_flight") -}}{{- include "dragoman.refuse" (list $of "gateway.max_in_flight" "is set by sequences already") -}}{{- end -}}
  {{- if and $model.caSecret.name $model.runs -}}{{- include "dragoman.refuse" (list $of "caSecret.name" "has no effect without urls") -}}{{- end -}}
  {{- if and $model.runs (hasKey (default dict (get $v.models $name)) "backend") -}}{{- include "dragoman.refuse" (list $of "backend" "has no effect without urls; the chart's own workers are chosen by engine") -}}{{- end -}}
  {{- if not $model.runs -}}
    {{- if $model.model -}}{{- include "dragoman.refuse" (list $of "model" "has no effect beside urls; the workers' own name is gateway.upstream_model") -}}{{- end -}}
    {{- if $model.autoscaling.enabled -}}{{- include "dragoman.refuse" (list $of "autoscaling.enabled" "the chart does not run the workers at urls") -}}{{- end -}}
    {{- if gt (int $model.nodes) 1 -}}{{- include "dragoman.refuse" (list $of "nodes" "the chart does not run the workers at urls") -}}{{- end -}}
    {{- if $model.kvEvents.enabled -}}{{- include "dragoman.refuse" (list $of "kvEvents.enabled" "the chart does not run the workers at urls; set gateway.kv_events and their own flag") -}}{{- end -}}
  {{- else -}}
    {{- include "dragoman.guardWorkers" $of -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of a model whose workers the chart runs. (dict "root" $ "name" NAME "model" MODEL), MODEL from dragoman.models. */ -}}
{{- define "dragoman.guardWorkers" -}}
{{- $of := . -}}{{- $v := .root.Values -}}{{- $model := .model -}}{{- $cache := $model.cache -}}
{{- $several := or (gt (int $model.replicas) 1) (gt (int $model.nodes) 1) $model.autoscaling.enabled -}}
{{- if eq $model.engine "vllm" -}}
  {{- if not $model.model -}}{{- include "dragoman.refuse" (list $of "model" "name the model, or say in urls where its workers are") -}}{{- end -}}
  {{- $own := list "--model" "--served-model-name" "--host" "--port" "--uds" "--grace" "--start-timeout" "--register" "--redis-password-file" "--redis-ca-file" "--max-num-seqs" "--api-key" "--nnodes" "--node-rank" "--master-addr" "--headless" -}}
  {{- range $flag := $own -}}
    {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list $flag)) -}}{{- include "dragoman.refuse" (list $of "args" (printf "the chart sets %s itself" $flag)) -}}{{- end -}}
  {{- end -}}
  {{- if and $model.loadsNothing (not (hasPrefix "/" $model.model)) (eq $cache.mode "emptyDir") -}}
    {{- include "dragoman.refuse" (list $of "cache.mode" "an emptyDir starts empty and nothing may be loaded into it; choose pvc, hostPath or image") -}}
  {{- end -}}
  {{- if and (hasPrefix "/" $model.model) (not (hasPrefix (printf "%s/" (trimSuffix "/" $cache.mountPath)) $model.model)) (ne $model.model $cache.mountPath) -}}
    {{- include "dragoman.refuse" (list $of "model" "is a folder outside cache.mountPath, which is all that is mounted") -}}
  {{- end -}}
{{- else -}}
  {{- range $flag := list "--host" "--port" "--name" "--model-file" "--grace" "--parallel" -}}
    {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list $flag)) -}}{{- include "dragoman.refuse" (list $of "args" (printf "the chart sets %s itself" $flag)) -}}{{- end -}}
  {{- end -}}
  {{- if eq $model.discovery "redis" -}}{{- include "dragoman.refuse" (list $of "discovery" "embedded workers enter no registry; leave it at auto") -}}{{- end -}}
  {{- if gt (int $model.nodes) 1 -}}{{- include "dragoman.refuse" (list $of "nodes" "an embedded worker runs on one machine") -}}{{- end -}}
  {{- if $model.apiKeySecret.name -}}{{- include "dragoman.refuse" (list $of "apiKeySecret.name" "embedded workers ask for no key") -}}{{- end -}}
{{- end -}}
{{- if hasKey $model.gateway "kv_events" -}}
  {{- $ranks := list "--data-parallel-size" "-dp" "--data-parallel-size-local" "-dpl" "--data-parallel-start-rank" "-dpr" -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" $ranks) -}}
    {{- include "dragoman.refuse" (list $of "args" "data parallel ranks behind one address each publish what they cached, and the gateway cannot choose the rank; do without kvEvents and gateway.kv_events") -}}
  {{- end -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--no-enable-prefix-caching")) -}}
    {{- include "dragoman.refuse" (list $of "args" "an engine without a prefix cache tells nothing of it; do without kvEvents and gateway.kv_events") -}}
  {{- end -}}
{{- end -}}
{{- $events := $model.kvEvents -}}
{{- if $events.enabled -}}
  {{- if ne $model.engine "vllm" -}}{{- include "dragoman.refuse" (list $of "kvEvents.enabled" "embedded workers do not tell what they have cached") -}}{{- end -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--kv-events-config")) -}}{{- include "dragoman.refuse" (list $of "args" "--kv-events-config is set by kvEvents already") -}}{{- end -}}
  {{- if ne (toJson $model.gateway.kv_events) (toJson (dict "port" (int $events.port) "replay_port" (int $events.replayPort))) -}}
    {{- include "dragoman.refuse" (list $of "gateway.kv_events" "is set by kvEvents already") -}}
  {{- end -}}
  {{- range $option := list "port" "replayPort" -}}
    {{- if eq 8000 (int (get $events $option)) -}}{{- include "dragoman.refuse" (list $of (printf "kvEvents.%s" $option) "is where requests go; choose another port") -}}{{- end -}}
  {{- end -}}
  {{- if eq (int $events.port) (int $events.replayPort) -}}
    {{- /* Where the model has one of the two of its own, that one is wrong. */ -}}
    {{- $own := default dict (get (get $v.models .name) "kvEvents") -}}
    {{- $option := ternary "port" "replayPort" (and (hasKey $own "port") (not (hasKey $own "replayPort"))) -}}
    {{- include "dragoman.refuse" (list $of (printf "kvEvents.%s" $option) "kvEvents.port and kvEvents.replayPort must differ") -}}
  {{- end -}}
  {{- if ne (default "prefix" $model.gateway.policy) "prefix" -}}{{- include "dragoman.refuse" (list $of "kvEvents.enabled" (printf "has no effect with gateway.policy: %s" $model.gateway.policy)) -}}{{- end -}}
  {{- if $v.ipv6 -}}{{- include "dragoman.refuse" (list $of "kvEvents.enabled" "vLLM publishes over IPv4 alone; it cannot be joined with ipv6") -}}{{- end -}}
{{- end -}}
{{- if hasKey $model.gateway "upstream_model" -}}{{- include "dragoman.refuse" (list $of "gateway.upstream_model" "the chart's own workers serve the model under its name here") -}}{{- end -}}
{{- if and (eq $model.discovery "redis") (eq $v.redis.mode "none") -}}{{- include "dragoman.refuse" (list $of "discovery" "the registry needs Redis; set redis.mode") -}}{{- end -}}
{{- if and (eq $model.discovery "redis") (eq $v.redis.mode "external") (ne $v.redis.external.topology "single") -}}
  {{- include "dragoman.refuse" (list $of "discovery" "workers register with one server, not with Sentinels or a cluster; choose dns") -}}
{{- end -}}
{{- if and (eq $cache.mode "hostPath") (not $cache.hostPath) -}}{{- include "dragoman.refuse" (list $of "cache.hostPath" "name the folder on the node") -}}{{- end -}}
{{- if eq $cache.mode "image" -}}
  {{- if not $cache.image -}}{{- include "dragoman.refuse" (list $of "cache.image" "name the image with the weights") -}}{{- end -}}
  {{- if semverCompare "<1.33.0-0" .root.Capabilities.KubeVersion.Version -}}{{- include "dragoman.refuse" (list $of "cache.mode" "image volumes need Kubernetes 1.33") -}}{{- end -}}
{{- end -}}
{{- if and (eq $cache.mode "pvc") $several (hasPrefix "ReadWriteOnce" $cache.accessMode) (not $cache.existingClaim) -}}
  {{- include "dragoman.refuse" (list $of "cache.accessMode" "several Pods share the claim; choose ReadWriteMany or ReadOnlyMany, or cache.mode: claimPerReplica") -}}
{{- end -}}
{{- if and (has $cache.mode (list "emptyDir" "claimPerReplica")) $cache.readOnly -}}{{- include "dragoman.refuse" (list $of "cache.readOnly" "an empty cache that nobody may write stays empty") -}}{{- end -}}
{{- if gt (int $model.nodes) 1 -}}
  {{- if lt (int $model.gpus) 1 -}}{{- include "dragoman.refuse" (list $of "gpus" "a group of Pods needs a GPU in each") -}}{{- end -}}
  {{- if eq $cache.mode "claimPerReplica" -}}{{- include "dragoman.refuse" (list $of "cache.mode" "claimPerReplica makes a StatefulSet, which is no group of nodes") -}}{{- end -}}
{{- end -}}
{{- if $model.autoscaling.enabled -}}
  {{- if not $v.monitoring.prometheusAddress -}}{{- fail (printf "monitoring.prometheusAddress: KEDA needs it for %s" (include "dragoman.place" (list $of "autoscaling.enabled"))) -}}{{- end -}}
  {{- if gt (int $model.autoscaling.minReplicas) (int $model.autoscaling.maxReplicas) -}}{{- include "dragoman.refuse" (list $of "autoscaling.minReplicas" (printf "is more than %s" (include "dragoman.place" (list $of "autoscaling.maxReplicas")))) -}}{{- end -}}
  {{- if eq $model.kind "RayCluster" -}}{{- include "dragoman.refuse" (list $of "autoscaling.enabled" "a RayCluster cannot be scaled by KEDA; choose multiNode: LeaderWorkerSet") -}}{{- end -}}
  {{- if eq $model.engine "embedded" -}}{{- include "dragoman.refuse" (list $of "autoscaling.enabled" "an embedded worker has none of vLLM's figures") -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Where an option that holds for a model stands: in the model, or in `modelDefaults`. What stands nowhere belongs into the
model. (list (dict "root" $ "name" NAME …) PATH) */ -}}
{{- define "dragoman.place" -}}
{{- $of := index . 0 -}}{{- $path := index . 1 -}}
{{- $own := get $of.root.Values.models $of.name -}}{{- $common := $of.root.Values.modelDefaults -}}{{- $inOwn := true -}}
{{- range $key := splitList "." $path -}}
  {{- if not (hasKey (default dict $own) $key) -}}{{- $inOwn = false -}}{{- end -}}
  {{- $own = get (default dict $own) $key -}}{{- $common = get (default dict $common) $key -}}
{{- end -}}
{{- if or $inOwn (eq (toString $common) "") -}}models.{{ $of.name }}.{{ $path }}{{- else -}}modelDefaults.{{ $path }}{{- end -}}
{{- end -}}

{{- /* Fails with the place of a model's option and why it is wrong. (list (dict "root" $ "name" NAME …) PATH WHY) */ -}}
{{- define "dragoman.refuse" -}}
{{- $of := index . 0 -}}{{- $place := include "dragoman.place" . -}}
{{- if hasPrefix "modelDefaults." $place -}}{{- $place = printf "%s (taken by models.%s)" $place $of.name -}}{{- end -}}
{{- fail (printf "%s: %s" $place (index . 2)) -}}
{{- end -}}
