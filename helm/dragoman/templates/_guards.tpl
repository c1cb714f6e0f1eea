{{- /* Combinations that cannot work. Each message begins with the value that is wrong. */ -}}
{{- define "dragoman.guards" -}}
{{- include "dragoman.forms" . -}}
{{- $v := .Values -}}
{{- $models := include "dragoman.models" . | fromJson -}}
{{- $config := $v.gateway.config -}}

{{- if not $v.models -}}{{- fail "models: name at least one model" -}}{{- end -}}

{{- if eq $v.auth.mode "keys" -}}
  {{- if not (or $v.auth.existingSecret $config.jwt $config.keys_store) -}}{{- fail "auth.existingSecret: name the Secret with the keys, set gateway.config.jwt or gateway.config.keys_store, or let everybody in with auth.mode: open" -}}{{- end -}}
{{- else -}}
  {{- if $v.auth.existingSecret -}}{{- fail "auth.existingSecret: has no effect with auth.mode: open" -}}{{- end -}}
  {{- if $config.jwt -}}{{- fail "gateway.config.jwt: has no effect with auth.mode: open" -}}{{- end -}}
  {{- if $config.keys_store -}}{{- fail "gateway.config.keys_store: has no effect with auth.mode: open" -}}{{- end -}}
  {{- range $name := list "cache_salt" "seal" -}}
    {{- if index $config $name -}}{{- fail (printf "gateway.config.%s: has no effect with auth.mode: open, where all callers are one" $name) -}}{{- end -}}
  {{- end -}}
{{- end -}}

{{- if and $v.console.enabled (not (or $v.console.existingSecret $v.console.oidc)) -}}{{- fail "console.existingSecret: name the Secret with the console's key, or set console.oidc: other Pods can call its port" -}}{{- end -}}
{{- range $name := list "existingSecret" "oidc" -}}
  {{- if and (index $v.console $name) (not $v.console.enabled) -}}{{- fail (printf "console.%s: has no effect without console.enabled" $name) -}}{{- end -}}
{{- end -}}
{{- if $v.console.oidc -}}
  {{- range $name := list "issuer" "client_id" "url" "roles" -}}
    {{- if not (index $v.console.oidc $name) -}}{{- fail (printf "console.oidc.%s: is needed" $name) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.console.oidc (not $v.console.oidcExistingSecret) -}}{{- fail "console.oidcExistingSecret: name the Secret with client_secret and session_secret" -}}{{- end -}}
{{- range $option, $given := dict "oidcExistingSecret" $v.console.oidcExistingSecret "oidcCaSecret.name" $v.console.oidcCaSecret.name -}}
  {{- if and $given (not $v.console.oidc) -}}{{- fail (printf "console.%s: has no effect without console.oidc" $option) -}}{{- end -}}
{{- end -}}

{{- if include "dragoman.holdsLogin" (toJson $v.console.oidc) -}}{{- fail "console.oidc: an address with a user or a password stands in a ConfigMap, for many to read" -}}{{- end -}}
{{- if include "dragoman.holdsLogin" (toJson $config) -}}{{- fail "gateway.config: an address with a user or a password stands in a ConfigMap, for many to read" -}}{{- end -}}
{{- range $file := regexFindAll "/run/dragoman/secrets/[^/\"]+/" (toJson $config) -1 -}}
  {{- if not (hasKey $v.gateway.secrets (base $file)) -}}{{- fail (printf "gateway.secrets: has no %s, in whose folder gateway.config names a file" (base $file)) -}}{{- end -}}
{{- end -}}
{{- if and $v.gateway.tracingHeadersSecret.name (not $config.tracing) -}}{{- fail "gateway.tracingHeadersSecret.name: has no effect without gateway.config.tracing" -}}{{- end -}}
{{- $tools := default dict $config.tools -}}
{{- if and $v.gateway.searchHeadersSecret.name (not $tools.web_search) -}}{{- fail "gateway.searchHeadersSecret.name: has no effect without gateway.config.tools.web_search" -}}{{- end -}}
{{- if and $v.airGapped (hasKey $tools "web_fetch") -}}{{- fail "gateway.config.tools.web_fetch: contradicts airGapped: it reaches public addresses" -}}{{- end -}}
{{- range $name, $_ := $v.gateway.guardHeadersSecrets -}}
  {{- if not (hasKey (default dict $config.guards) $name) -}}{{- fail (printf "gateway.guardHeadersSecrets: has no effect for %s, which gateway.config.guards does not have" $name) -}}{{- end -}}
{{- end -}}
{{- if not $v.image.repository -}}{{- fail "image.repository: name the gateway's image" -}}{{- end -}}
{{- $external := $v.redis.external -}}
{{- if and (include "dragoman.redisPassword" .) (not $v.redis.existingSecret) -}}
  {{- fail "redis.existingSecret: name the Secret with the password of Redis, or do without it with redis.mode: none" -}}
{{- end -}}
{{- if and (eq $v.redis.mode "external") (not $external.addresses) -}}{{- fail "redis.external.addresses: say where the external Redis is" -}}{{- end -}}
{{- if and (ne $v.redis.mode "external") $external.addresses -}}{{- fail "redis.external.addresses: has no effect without redis.mode: external" -}}{{- end -}}
{{- if and (eq $v.redis.mode "external") (eq $external.topology "single") (gt (len $external.addresses) 1) -}}
  {{- fail "redis.external.addresses: must be one, unless redis.external.topology is sentinel or cluster" -}}
{{- end -}}
{{- if and $external.sentinelAuth (ne $external.topology "sentinel") -}}{{- fail "redis.external.sentinelAuth: has no effect without redis.external.topology: sentinel" -}}{{- end -}}
{{- if and $external.noPassword $v.redis.existingSecret -}}{{- fail "redis.external.noPassword: contradicts redis.existingSecret" -}}{{- end -}}
{{- if and $external.caSecret.name (not $external.tls) -}}{{- fail "redis.external.caSecret: has no effect without redis.external.tls" -}}{{- end -}}
{{- if and (eq $external.topology "cluster") $external.db -}}{{- fail "redis.external.db: a cluster has database 0 alone" -}}{{- end -}}
{{- $several := or (gt (int $v.gateway.replicas) 1) $v.gateway.autoscaling.enabled -}}
{{- range $section, $option := dict "limiter" "store" "store" "where" -}}
  {{- if and $several (eq (toString (get (default dict (get $config $section)) $option)) "memory") -}}{{- fail (printf "gateway.config.%s.%s: each gateway would keep its own; set it to redis, or gateway.replicas: 1" $section $option) -}}{{- end -}}
{{- end -}}
{{- if eq $v.redis.mode "none" -}}
  {{- if and $config.limits $several -}}
    {{- fail "gateway.config.limits: without Redis each gateway counts for itself; set redis.mode, or gateway.replicas: 1" -}}
  {{- end -}}
  {{- if and $config.accounting $config.accounting.redis_stream -}}{{- fail "gateway.config.accounting.redis_stream: needs Redis; set redis.mode" -}}{{- end -}}
  {{- if and $config.store (eq (toString $config.store.where) "redis") -}}{{- fail "gateway.config.store.where: needs Redis; set redis.mode" -}}{{- end -}}
  {{- if and $config.reply_cache (eq (toString $config.reply_cache.store) "redis") -}}{{- fail "gateway.config.reply_cache.store: needs Redis; set redis.mode" -}}{{- end -}}
{{- end -}}

{{- with $v.gateway.promptLog -}}
  {{- $log := default dict $config.prompt_log -}}
  {{- if and $config.prompt_log (not (or .enabled $log.bucket $log.traces)) -}}{{- fail "gateway.config.prompt_log: must say where: by its bucket or traces, or by gateway.promptLog.enabled" -}}{{- end -}}
  {{- if and .existingClaim (not .enabled) -}}{{- fail "gateway.promptLog.existingClaim: has no effect without gateway.promptLog.enabled" -}}{{- end -}}
  {{- $most := default "1GiB" $log.max_bytes -}}
  {{- if kindIs "string" $most -}}{{- $most = trimSuffix "B" $most -}}{{- end -}}
  {{- if and .enabled (not .existingClaim) (lt (include "dragoman.bytes" .size | float64) (mulf 2 (include "dragoman.bytes" $most | float64))) -}}
    {{- fail "gateway.promptLog.size: must be at least twice gateway.config.prompt_log.max_bytes (1GiB without it): Kubernetes ends a Pod whose volume is full" -}}
  {{- end -}}
{{- end -}}

{{- with $v.gateway.batches -}}
  {{- if and $config.batches (not .enabled) -}}{{- fail "gateway.config.batches: has no effect without gateway.batches.enabled, which says where files are kept" -}}{{- end -}}
  {{- if and .enabled (eq $v.redis.mode "none") -}}{{- fail "gateway.batches.enabled: needs Redis; set redis.mode" -}}{{- end -}}
  {{- if and .enabled (eq $v.redis.mode "valkey") (not $v.redis.valkey.persistence.enabled) -}}{{- fail "redis.valkey.persistence.enabled: without it a restart of Valkey loses the batches of gateway.batches" -}}{{- end -}}
  {{- $bucket := .bucket -}}
  {{- if and $bucket.url (not .enabled) -}}{{- fail "gateway.batches.bucket.url: has no effect without gateway.batches.enabled" -}}{{- end -}}
  {{- if and $bucket.url .existingClaim -}}{{- fail "gateway.batches.existingClaim: has no effect with gateway.batches.bucket.url" -}}{{- end -}}
  {{- if and $bucket.url (not $bucket.name) -}}{{- fail "gateway.batches.bucket.name: is needed with gateway.batches.bucket.url" -}}{{- end -}}
  {{- range $option, $given := dict "name" $bucket.name "existingSecret" $bucket.existingSecret "caSecret.name" $bucket.caSecret.name -}}
    {{- if and $given (not $bucket.url) -}}{{- fail (printf "gateway.batches.bucket.%s: has no effect without gateway.batches.bucket.url" $option) -}}{{- end -}}
  {{- end -}}
  {{- if and .enabled (not .existingClaim) (not $bucket.url) -}}
    {{- if and (ne .accessMode "ReadWriteMany") $several -}}{{- fail "gateway.batches.accessMode: several gateways share the claim; choose ReadWriteMany, or gateway.replicas: 1" -}}{{- end -}}
    {{- if and (ne .accessMode "ReadWriteMany") (eq $v.gateway.rollout "surge") -}}{{- fail "gateway.rollout: with surge the new Pod waits for a claim that the old one has; choose replace, or gateway.batches.accessMode: ReadWriteMany" -}}{{- end -}}
    {{- $changed := include "dragoman.changedClaim" (dict "root" $ "kind" "PersistentVolumeClaim" "name" (printf "%s-batches" (include "dragoman.fullname" $)) "claim" .) -}}
    {{- if $changed -}}{{- fail (printf "gateway.batches.%s: cannot be changed in place; docs/upgrading.md#storage says how" $changed) -}}{{- end -}}
  {{- end -}}
{{- end -}}

{{- $gatewayResources := default dict $v.gateway.resources -}}
{{- if and $v.gateway.autoscaling.enabled (not (or (default dict $gatewayResources.requests).cpu (default dict $gatewayResources.limits).cpu)) -}}
  {{- fail "gateway.resources.requests.cpu: gateway.autoscaling needs it: its target is a share of that" -}}
{{- end -}}
{{- with $v.gateway.autoscaling -}}
  {{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}{{- fail "gateway.autoscaling.minReplicas: is more than maxReplicas" -}}{{- end -}}
{{- end -}}
{{- with $v.redis.valkey -}}
  {{- $limit := (default dict (default dict .resources).limits).memory -}}
  {{- if and (eq $v.redis.mode "valkey") $limit (ge (include "dragoman.bytes" .maxMemory | float64) (include "dragoman.bytes" $limit | float64)) -}}
    {{- fail "redis.valkey.maxMemory: must be below redis.valkey.resources.limits.memory, at which the kernel ends Valkey" -}}
  {{- end -}}
{{- end -}}
{{- if and $config.keys_store (eq $v.redis.mode "valkey") (not $v.redis.valkey.persistence.enabled) -}}
  {{- fail "redis.valkey.persistence.enabled: without it a restart of Valkey loses the keys of gateway.config.keys_store" -}}
{{- end -}}
{{- if and $config.budgets (eq $v.redis.mode "valkey") (not $v.redis.valkey.persistence.enabled) -}}
  {{- fail "redis.valkey.persistence.enabled: without it a restart of Valkey forgets what was spent of gateway.config.budgets" -}}
{{- end -}}
{{- if and $config.keys_store (eq $v.redis.mode "none") -}}{{- fail "gateway.config.keys_store: needs Redis; set redis.mode" -}}{{- end -}}
{{- if and $v.redis.valkey.persistence.enabled (ne $v.redis.mode "valkey") -}}{{- fail "redis.valkey.persistence.enabled: has no effect without redis.mode: valkey" -}}{{- end -}}

{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}{{- fail "ingress.hosts: name at least one host" -}}{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.hosts) -}}{{- fail "httpRoute.hosts: name at least one host" -}}{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}{{- fail "httpRoute.parentRefs: name the Gateway that carries the routes" -}}{{- end -}}
{{- range $former, $name := dict "azure" "azure_inference" "ollama_native" "ollama" -}}
  {{- if hasKey (default dict $config.dialects) $former -}}{{- fail (printf "gateway.config.dialects.%s: the dialect is called %s now" $former $name) -}}{{- end -}}
{{- end -}}
{{- if and (hasKey (default dict $config.dialects) "ollama") (not (hasKey $config.dialects "ollama_style")) -}}{{- fail "gateway.config.dialects.ollama: is Ollama's own API now; the section ollama_style, which may be empty, says that this is meant" -}}{{- end -}}
{{- range $where := list "ingress" "httpRoute" -}}
  {{- range $index, $host := (get $v $where).hosts -}}
    {{- range $dialect := default list $host.dialects -}}
      {{- $options := get (default dict $config.dialects) $dialect | default dict -}}
      {{- if eq (toString $options.enabled) "false" -}}{{- fail (printf "%s.hosts[%d].dialects: %s is not enabled in gateway.config.dialects" $where $index $dialect) -}}{{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $option := list "loadBalancerClass" "loadBalancerSourceRanges" "externalTrafficPolicy" -}}
  {{- $types := ternary (list "LoadBalancer" "NodePort") (list "LoadBalancer") (eq $option "externalTrafficPolicy") -}}
  {{- if and (get $v.gateway.service $option) (not (has $v.gateway.service.type $types)) -}}{{- fail (printf "gateway.service.%s: needs gateway.service.type: LoadBalancer" $option) -}}{{- end -}}
{{- end -}}
{{- /* Gateways listen on IPv6 where the chart says so. Kubernetes takes two families with a policy for two. */ -}}
{{- $dual := hasSuffix "DualStack" $v.gateway.service.ipFamilyPolicy -}}
{{- if and (not $v.ipv6) (has "IPv6" $v.gateway.service.ipFamilies) -}}{{- fail "gateway.service.ipFamilies: gateways listen on IPv6 with ipv6: true alone" -}}{{- end -}}
{{- if and (not $v.ipv6) $dual -}}{{- fail "gateway.service.ipFamilyPolicy: gateways listen on both families with ipv6: true alone" -}}{{- end -}}
{{- if and (gt (len $v.gateway.service.ipFamilies) 1) (not $dual) -}}{{- fail "gateway.service.ipFamilyPolicy: must be PreferDualStack or RequireDualStack for two families" -}}{{- end -}}
{{- $service := $v.gateway.service -}}
{{- with (lookup "v1" "Service" $.Release.Namespace (include "dragoman.fullname" $)).spec -}}
  {{- $fixed := dict -}}
  {{- if and (eq .type $service.type) $service.loadBalancerClass -}}{{- $_ := set $fixed "loadBalancerClass" (list $service.loadBalancerClass (default "" .loadBalancerClass)) -}}{{- end -}}
  {{- if and .ipFamilies $service.ipFamilies -}}{{- $_ := set $fixed "ipFamilies" (list (first $service.ipFamilies) (first .ipFamilies)) -}}{{- end -}}
  {{- range $option, $pair := $fixed -}}
    {{- if ne (first $pair) (last $pair) -}}{{- fail (printf "gateway.service.%s: cannot be changed in place; docs/upgrading.md#services says how" $option) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- range $monitor := list "serviceMonitor" "podMonitor" -}}
  {{- with get $v.monitoring $monitor -}}
    {{- if and .scrapeTimeout (gt (include "dragoman.milliseconds" .scrapeTimeout | int) (include "dragoman.milliseconds" .interval | int)) -}}
      {{- fail (printf "monitoring.%s.scrapeTimeout: is longer than interval, and the operator leaves out such a monitor" $monitor) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $alerts := "" -}}
{{- range $path, $file := .Files.Glob "alerts/*.yaml" -}}{{- $alerts = printf "%s\n%s" $alerts (toString $file) -}}{{- end -}}
{{- range $name, $alert := $v.monitoring.prometheusRule.alerts -}}
  {{- if not (regexMatch (printf "alert: %s\\b" $name) $alerts) -}}{{- fail (printf "monitoring.prometheusRule.alerts.%s: there is no such alert" $name) -}}{{- end -}}
{{- end -}}
{{- $own := "^(app[.]kubernetes[.]io/(name|instance|component|part-of|managed-by|version)|helm[.]sh/chart|dragoman-(model|role))$" -}}
{{- $labels := dict "commonLabels" $v.commonLabels "gateway.labels" $v.gateway.labels "gateway.podLabels" $v.gateway.podLabels "gateway.service.labels" $v.gateway.service.labels -}}
{{- range $at, $part := dict "redis.valkey" $v.redis.valkey "test" $v.test "check" $v.check -}}{{- range $key := list "labels" "podLabels" -}}{{- $_ := set $labels (printf "%s.%s" $at $key) (default dict (get $part $key)) -}}{{- end -}}{{- end -}}
{{- range $part := list "serviceMonitor" "podMonitor" "prometheusRule" "dashboards" -}}{{- $_ := set $labels (printf "monitoring.%s.labels" $part) (get $v.monitoring $part).labels -}}{{- end -}}
{{- range $name, $model := $models -}}{{- range $part := list "labels" "podLabels" -}}{{- $_ := set $labels (include "dragoman.place" (list (dict "root" $ "name" $name) $part)) (get $model $part) -}}{{- end -}}{{- end -}}
{{- range $where, $given := $labels -}}{{- range $key, $_ := $given -}}
  {{- if regexMatch $own $key -}}{{- fail (printf "%s: the chart sets %s itself, and finds its Pods by such labels" $where $key) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- $whole := dict -}}{{- $kinds := dict -}}
{{- range $config.limits -}}
  {{- if ne .kind (default .kind (get $kinds .name)) -}}{{- fail (printf "gateway.config.limits: %s is the name of a limit of another kind before it" .name) -}}{{- end -}}
  {{- $_ := set $kinds .name .kind -}}
  {{- if hasKey $whole .name -}}{{- fail (printf "gateway.config.limits: %s is the name of a limit before it that matches everything" .name) -}}{{- end -}}
  {{- if not .match -}}{{- $_ := set $whole .name true -}}{{- end -}}
{{- end -}}
{{- range $at, $part := dict "gateway" $v.gateway "test" $v.test "redis.valkey" $v.redis.valkey -}}
  {{- if and $v.airGapped (has $part.serviceAccount.identity (list "irsa" "azure")) -}}{{- fail (printf "%s.serviceAccount.identity: contradicts airGapped: its tokens are exchanged at a public address" $at) -}}{{- end -}}
{{- end -}}
{{- include "dragoman.guardPod" (dict "root" $ "model" $v.gateway "main" "gateway") -}}
{{- include "dragoman.guardPod" (dict "root" $ "model" $v.redis.valkey "main" "valkey" "at" "redis.valkey" "volumes" (list "config" "redis" "data" "run")) -}}
{{- include "dragoman.guardPod" (dict "root" $ "model" $v.test "main" "completions" "at" "test" "volumes" (list "script" "tmp")) -}}
{{- include "dragoman.guardPod" (dict "root" $ "model" $v.check "main" "check" "at" "check" "volumes" (list "manifests" "tmp")) -}}
{{- if eq $v.redis.mode "valkey" -}}
  {{- $persistence := $v.redis.valkey.persistence -}}
  {{- $changed := include "dragoman.changedClaim" (dict "root" $ "kind" "StatefulSet" "name" (printf "%s-valkey" (include "dragoman.fullname" $)) "claim" (ternary $persistence nil $persistence.enabled)) -}}
  {{- if $changed -}}{{- fail (printf "redis.valkey.persistence.%s: cannot be changed in place; docs/upgrading.md#storage says how" $changed) -}}{{- end -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "dragoman.fullname" $)) -}}
  {{- fail (printf "fullnameOverride: %s is not a name for a Service; give one of letters, digits and dashes that begins with a letter" (include "dragoman.fullname" $)) -}}
{{- end -}}

{{- $slugs := dict -}}{{- $names := dict -}}
{{- range $name, $_ := $models -}}{{- $_ := set $names $name $name -}}{{- end -}}
{{- range $name, $model := $models -}}
  {{- $of := dict "root" $ "name" $name -}}
  {{- range $alias := $model.gateway.aliases -}}
    {{- if contains "*" (trimSuffix "*" $alias) -}}{{- include "dragoman.refuse" (list $of "gateway.aliases" (printf "%s: a * stands at the end, for all names that begin like it" $alias)) -}}{{- end -}}
    {{- if hasKey $names $alias -}}{{- include "dragoman.refuse" (list $of "gateway.aliases" (printf "%s is a name of models.%s already" $alias (get $names $alias))) -}}{{- end -}}
    {{- $_ := set $names $alias $name -}}
  {{- end -}}
{{- end -}}
{{- $asked := dict "test.model" (list $v.test.model) -}}
{{- range $dialect, $options := $config.dialects -}}{{- $_ := set $asked (printf "gateway.config.dialects.%s.default_model" $dialect) (list (default dict $options).default_model) -}}{{- end -}}
{{- range $config.limits -}}{{- $_ := set $asked "gateway.config.limits" (concat (default list (get $asked "gateway.config.limits")) (default list (default dict .match).model)) -}}{{- end -}}
{{- range $where, $others := $asked -}}{{- range $other := $others -}}
  {{- if and $other (or (not (hasKey $names $other)) (hasSuffix "*" $other)) -}}{{- fail (printf "%s: there is no model %s" $where $other) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- range $name, $model := $models -}}
  {{- $at := printf "models.%s" $name -}}
  {{- $of := dict "root" $ "name" $name "model" $model -}}
  {{- if and $v.airGapped (has $model.serviceAccount.identity (list "irsa" "azure")) -}}{{- include "dragoman.refuse" (list $of "serviceAccount.identity" "contradicts airGapped: its tokens are exchanged at a public address") -}}{{- end -}}
  {{- if has $name (list "true" "false") -}}{{- fail (printf "%s: helm reads a name such as n or yes as this word; write it in quotes" $at) -}}{{- end -}}
  {{- $others := get $slugs $model.slug -}}
  {{- if $others -}}{{- fail (printf "%s: its objects would have the names of those of models.%s" $at $others) -}}{{- end -}}
  {{- $_ := set $slugs $model.slug $name -}}
  {{- if or (has $model.slug (list "metrics" "valkey" "completions")) (and (eq $model.slug "gateway") $v.gateway.serviceAccount.create) -}}{{- fail (printf "%s: is the name of another object of the chart" $at) -}}{{- end -}}
  {{- $targets := dict "fallback" $model.gateway.fallback "mirror" (list (default dict $model.gateway.mirror).model) "split" list -}}
  {{- range $model.gateway.split -}}{{- $_ := set $targets "split" (append $targets.split .model) -}}{{- end -}}
  {{- range $option, $others := $targets -}}{{- range $other := $others -}}
    {{- if and $other (or (not (hasKey $names $other)) (hasSuffix "*" $other)) -}}{{- include "dragoman.refuse" (list $of (printf "gateway.%s" $option) (printf "there is no model %s" $other)) -}}{{- end -}}
    {{- if and $other (eq (get $names $other) $name) -}}{{- include "dragoman.refuse" (list $of (printf "gateway.%s" $option) (printf "%s is the model itself" $other)) -}}{{- end -}}
  {{- end -}}{{- end -}}
  {{- range $header, $_ := $model.gateway.headers -}}
    {{- if regexMatch "(?i)(authorization|cookie|key|token|secret|password)" $header -}}{{- include "dragoman.refuse" (list $of "gateway.headers" (printf "%s may hold a secret; set headersSecret" $header)) -}}{{- end -}}
  {{- end -}}
  {{- if include "dragoman.holdsLogin" (toJson $model.gateway) -}}{{- include "dragoman.refuse" (list $of "gateway" "an address with a user or a password stands in a ConfigMap, for many to read") -}}{{- end -}}
  {{- if and $model.sequences (hasKey $model.gateway "max_in_flight") -}}{{- include "dragoman.refuse" (list $of "gateway.max_in_flight" "is set by sequences already") -}}{{- end -}}
  {{- if and $model.caSecret.name $model.runs -}}{{- include "dragoman.refuse" (list $of "caSecret.name" "has no effect without urls") -}}{{- end -}}
  {{- if and $model.runs (hasKey (default dict (get $v.models $name)) "backend") -}}{{- include "dragoman.refuse" (list $of "backend" "has no effect without urls; the chart's own workers are chosen by engine") -}}{{- end -}}
  {{- range $part := list "egressTo" "egressPorts" -}}
    {{- if and $model.runs (not $model.gateway.prefill) (get (default dict (get $v.models $name)) $part) -}}{{- include "dragoman.refuse" (list $of $part "has no effect without urls") -}}{{- end -}}
  {{- end -}}
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
{{- include "dragoman.guardPod" (merge (dict "main" "worker") $of) -}}
{{- $several := or (gt (int $model.replicas) 1) (gt (int $model.nodes) 1) $model.autoscaling.enabled -}}
{{- if include "dragoman.holdsLogin" (toJson $model.args) -}}{{- include "dragoman.refuse" (list $of "args" "an address with a user or a password stands in the Pod, for many to read; take it from a Secret by env") -}}{{- end -}}
{{- if eq $model.engine "vllm" -}}
  {{- if not $model.model -}}{{- include "dragoman.refuse" (list $of "model" "name the model, or say in urls where its workers are") -}}{{- end -}}
  {{- $own := list "--model" "--served-model-name" "--host" "--port" "--uds" "--grace" "--start-timeout" "--register" "--namespace" "--redis-password-file" "--redis-ca-file" "--max-num-seqs" "--api-key" "--nnodes" "--node-rank" "--master-addr" "--headless" -}}
  {{- range $flag := list "--ssl-keyfile" "--ssl-certfile" "--ssl-ca-certs" "--ssl-cert-reqs" "--enable-ssl-refresh" -}}
    {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list $flag)) -}}{{- include "dragoman.refuse" (list $of "args" (printf "%s: probes and gateways speak plain HTTP to the chart's workers" $flag)) -}}{{- end -}}
  {{- end -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--disable-log-stats")) -}}{{- include "dragoman.refuse" (list $of "args" "--disable-log-stats: without its load a worker cannot see when requests have ended") -}}{{- end -}}
  {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--hf-token")) -}}{{- include "dragoman.refuse" (list $of "args" "--hf-token holds a secret; set hubTokenSecret") -}}{{- end -}}
  {{- $split := 1 -}}
  {{- range $flags := list (list "--tensor-parallel-size" "-tp") (list "--pipeline-parallel-size" "-pp") (list "--data-parallel-size" "-dp") (list "--prefill-context-parallel-size" "-pcp") -}}
    {{- $split = mul $split (default "1" (include "dragoman.flagValue" (dict "args" $model.args "flags" $flags)) | int) -}}
  {{- end -}}
  {{- /* Without such flags the chart sets them; with others, engines find one another in ways of their own. */ -}}
  {{- $others := list "--data-parallel-size-local" "-dpl" "--data-parallel-start-rank" "-dpr" "--data-parallel-rank" "-dpn" "--data-parallel-address" "-dpa" "--data-parallel-backend" "-dpb" "--config" -}}
  {{- $given := and (include "dragoman.hasFlag" (dict "args" $model.args "flags" (list "--tensor-parallel-size" "-tp" "--pipeline-parallel-size" "-pp" "--data-parallel-size" "-dp"))) (not (include "dragoman.hasFlag" (dict "args" $model.args "flags" $others))) -}}
  {{- $there := mul (int $model.gpus) (int $model.nodes) -}}
  {{- if and $given $there (ne (int $split) (int $there)) -}}
    {{- include "dragoman.refuse" (list $of "args" (printf "splits the model over %d GPUs, and a copy has %d (gpus, nodes)" $split $there)) -}}
  {{- end -}}
  {{- range $flag := $own -}}
    {{- if include "dragoman.hasFlag" (dict "args" $model.args "flags" (list $flag)) -}}{{- include "dragoman.refuse" (list $of "args" (printf "the chart sets %s itself" $flag)) -}}{{- end -}}
  {{- end -}}
  {{- range $part := list "requests" "limits" -}}
    {{- if and (int $model.gpus) (hasKey (default dict (get $model.resources $part)) $model.gpuResource) -}}{{- include "dragoman.refuse" (list $of (printf "resources.%s" $part) (printf "%s is set by gpus already" $model.gpuResource)) -}}{{- end -}}
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
{{- $given := default dict (default dict (get $v.models .name)).cache -}}
{{- range $part, $mode := dict "existingClaim" "pvc" "hostPath" "hostPath" "image" "image" -}}
  {{- if and (get $given $part) (ne $cache.mode $mode) -}}{{- include "dragoman.refuse" (list $of (printf "cache.%s" $part) (printf "has no effect without cache.mode: %s" $mode)) -}}{{- end -}}
{{- end -}}
{{- if has (trimSuffix "/" $cache.mountPath) (list "/tmp" "/dev/shm") -}}{{- include "dragoman.refuse" (list $of "cache.mountPath" "the chart mounts something else there") -}}{{- end -}}
{{- if and (eq $cache.mode "hostPath") (not $cache.hostPath) -}}{{- include "dragoman.refuse" (list $of "cache.hostPath" "name the folder on the node") -}}{{- end -}}
{{- if eq $cache.mode "image" -}}
  {{- if not $cache.image -}}{{- include "dragoman.refuse" (list $of "cache.image" "name the image with the weights") -}}{{- end -}}
  {{- if semverCompare "<1.33.0-0" .root.Capabilities.KubeVersion.Version -}}{{- include "dragoman.refuse" (list $of "cache.mode" "image volumes need Kubernetes 1.33") -}}{{- end -}}
{{- end -}}
{{- $modes := list $cache.accessMode -}}
{{- with $cache.existingClaim -}}{{- with lookup "v1" "PersistentVolumeClaim" $of.root.Release.Namespace . -}}{{- $modes = .spec.accessModes -}}{{- end -}}{{- end -}}
{{- $alone := and (eq $cache.mode "pvc") (eq (len $modes) (len (without $modes "ReadWriteMany" "ReadOnlyMany"))) -}}
{{- if and $alone $several -}}
  {{- $part := ternary "cache.accessMode" "cache.existingClaim" (has $cache.accessMode $modes) -}}
  {{- include "dragoman.refuse" (list $of $part "several Pods share the claim; choose ReadWriteMany or ReadOnlyMany, or cache.mode: claimPerReplica") -}}
{{- end -}}
{{- if eq $model.rollout "surge" -}}
  {{- if $alone -}}
    {{- include "dragoman.refuse" (list $of "rollout" "with surge the new Pod waits for a claim that the old one has; choose replace, or cache.accessMode: ReadWriteMany") -}}
  {{- end -}}
  {{- if eq $model.kind "RayCluster" -}}{{- include "dragoman.refuse" (list $of "rollout" "the operator of RayClusters replaces them as a whole; choose replace") -}}{{- end -}}
  {{- if eq $cache.mode "claimPerReplica" -}}{{- include "dragoman.refuse" (list $of "rollout" "claimPerReplica makes a StatefulSet, which replaces its Pods; choose replace") -}}{{- end -}}
{{- end -}}
{{- $kind := get (dict "pvc" "PersistentVolumeClaim" "claimPerReplica" "StatefulSet") $cache.mode -}}
{{- if and $kind (not $cache.existingClaim) -}}
  {{- $changed := include "dragoman.changedClaim" (dict "root" .root "kind" $kind "name" (ternary (printf "%s-cache" $model.object) $model.object (eq $cache.mode "pvc")) "claim" $cache) -}}
  {{- if $changed -}}{{- include "dragoman.refuse" (list $of (printf "cache.%s" $changed) "cannot be changed in place; docs/upgrading.md#storage says how") -}}{{- end -}}
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

{{- /* Guards of a Pod's additions from the values. (dict "root" "name"? "model" SECTION "main" CONTAINER) */ -}}
{{- define "dragoman.guardPod" -}}
{{- $of := . -}}{{- $containers := list (dict "name" .main) -}}
{{- range $part := list "initContainers" "sidecars" -}}
  {{- $containers = concat $containers (get $of.model $part) -}}
  {{- range $name, $count := include "dragoman.counts" $containers | fromJson -}}
    {{- if gt (int $count) 1 -}}{{- include "dragoman.refuse" (list $of $part (printf "%s is the name of another container" $name)) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- range $part := list "env" "volumes" "volumeMounts" "hostAliases" "topologySpreadConstraints" -}}
  {{- range $name, $count := include "dragoman.counts" (get $of.model $part) | fromJson -}}
    {{- if gt (int $count) 1 -}}{{- include "dragoman.refuse" (list $of $part (printf "%s is there twice" $name)) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- range $name, $most := (default dict .model.resources).limits -}}
  {{- $least := get (default dict $of.model.resources.requests) $name -}}
  {{- if and $least $most (gt (include "dragoman.bytes" $least | float64) (include "dragoman.bytes" $most | float64)) -}}{{- include "dragoman.refuse" (list $of "resources" (printf "requests more of %s than its limit" $name)) -}}{{- end -}}
{{- end -}}
{{- $there := default (ternary (list "config" "known" "tmp") (list "cache" "shm" "tmp" "redis" "redis-ca") (eq .main "gateway")) .volumes -}}
{{- if eq .main "gateway" -}}{{- range $folder, $_ := include "dragoman.gatewaySecrets" .root | fromJson -}}{{- $there = append $there (replace "/" "-" $folder) -}}{{- end -}}{{- end -}}
{{- range .model.volumes -}}{{- $there = append $there .name -}}{{- end -}}
{{- range .model.volumeMounts -}}
  {{- if not (has .name $there) -}}{{- include "dragoman.refuse" (list $of "volumeMounts" (printf "there is no volume %s" .name)) -}}{{- end -}}
{{- end -}}
{{- $own := "^DRAGOMAN_(CONFIG|AUTH|KEYS_FILE|LISTEN__(HOST|PORT)|METRICS__(ENABLED|LISTEN)|RELAY__(DRAIN|NOTICE)_S|REDIS__(ADDRESSES|URL|MODE|NAMESPACE))$" -}}
{{- range .model.env -}}
  {{- if and (eq $of.main "gateway") (regexMatch $own .name) -}}{{- include "dragoman.refuse" (list $of "env" (printf "%s: the chart sets this option itself" .name)) -}}{{- end -}}
{{- end -}}
{{- range $part := list "env" "initContainers" "sidecars" -}}
  {{- $variables := default list (get $of.model $part) -}}
  {{- if ne $part "env" -}}{{- $variables = list -}}{{- range get $of.model $part -}}{{- $variables = concat $variables (default list .env) -}}{{- end -}}{{- end -}}
  {{- range $variables -}}
    {{- if and .value (regexMatch "(?i)(^|_)(TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS|HEADERS)$" .name) -}}{{- include "dragoman.refuse" (list $of $part (printf "%s may hold a secret; take it from one by valueFrom" .name)) -}}{{- end -}}
    {{- if include "dragoman.holdsLogin" (toString .value) -}}{{- include "dragoman.refuse" (list $of $part (printf "%s has an address with a user or a password; take it from a Secret by valueFrom" .name)) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* "true" for a text with an address that has a user or a password. What Kubernetes writes in later, `$(NAME)`, is none. */ -}}
{{- define "dragoman.holdsLogin" -}}
{{- if regexMatch "://[^/\\s\"@]*[^/\\s\":@][^/\\s\"]*@" (regexReplaceAll "[$][(][^)]*[)]" . "") }}true{{ end -}}
{{- end -}}

{{- /* A list of mappings -> how often each is there by what Kubernetes tells them apart by, JSON. */ -}}
{{- define "dragoman.counts" -}}
{{- $found := dict -}}
{{- range . -}}{{- $key := coalesce .mountPath .name .ip (printf "%v, %v" .topologyKey .whenUnsatisfiable) -}}{{- $_ := set $found $key (add1 (default 0 (get $found $key))) -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* The field of a claim that differs from the cluster's and cannot become what the values say; "" if all can.
(dict "root" "kind" "PersistentVolumeClaim"|"StatefulSet" "name" "claim" VALUES?) */ -}}
{{- define "dragoman.changedClaim" -}}
{{- $live := lookup (ternary "apps/v1" "v1" (eq .kind "StatefulSet")) .kind .root.Release.Namespace .name -}}
{{- if $live -}}
  {{- $templates := default list $live.spec.volumeClaimTemplates -}}
  {{- if and (eq .kind "StatefulSet") (ne (empty .claim) (empty $templates)) -}}
enabled
  {{- else if .claim -}}
    {{- $spec := ternary (default dict (first (append $templates dict))).spec $live.spec (eq .kind "StatefulSet") -}}
    {{- $there := include "dragoman.bytes" $spec.resources.requests.storage | float64 -}}{{- $asked := include "dragoman.bytes" .claim.size | float64 -}}
    {{- if and .claim.storageClass (ne .claim.storageClass (default "" $spec.storageClassName)) -}}
storageClass
    {{- else if and (eq .kind "PersistentVolumeClaim") (not (has .claim.accessMode $spec.accessModes)) -}}
accessMode
    {{- else if or (lt $asked $there) (and (eq .kind "StatefulSet") (ne $asked $there)) -}}
size
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* An amount of Kubernetes, or of Valkey (kb, mb, gb), as text or number -> bytes. */ -}}
{{- define "dragoman.bytes" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "kb" 1024 "mb" 1048576 "gb" 1073741824 -}}
{{- if kindIs "string" . -}}{{- mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[A-Za-z]*$" .)) -}}{{- else -}}{{- . -}}{{- end -}}
{{- end -}}

{{- define "dragoman.milliseconds" -}}
{{- mul (regexFind "^[0-9]+" .) (get (dict "ms" 1 "s" 1000 "m" 60000) (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{- /* Where an option that holds for a model stands: in the model, or in `modelDefaults`. What stands nowhere belongs into the
model. (list (dict "root" $ "name" NAME …) PATH) */ -}}
{{- define "dragoman.place" -}}
{{- $of := index . 0 -}}{{- $path := index . 1 -}}
{{- if not $of.name -}}{{ default "gateway" $of.at }}.{{ $path }}{{- else -}}
{{- $own := get $of.root.Values.models $of.name -}}{{- $common := $of.root.Values.modelDefaults -}}{{- $inOwn := true -}}
{{- range $key := splitList "." $path -}}
  {{- if not (hasKey (default dict $own) $key) -}}{{- $inOwn = false -}}{{- end -}}
  {{- $own = get (default dict $own) $key -}}{{- $common = get (default dict $common) $key -}}
{{- end -}}
{{- if or $inOwn (eq (toString $common) "") -}}models.{{ $of.name }}.{{ $path }}{{- else -}}modelDefaults.{{ $path }}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Fails with the place of a model's option and why it is wrong. (list (dict "root" $ "name" NAME …) PATH WHY) */ -}}
{{- define "dragoman.refuse" -}}
{{- $of := index . 0 -}}{{- $place := include "dragoman.place" . -}}
{{- if hasPrefix "modelDefaults." $place -}}{{- $place = printf "%s (taken by models.%s)" $place $of.name -}}{{- end -}}
{{- fail (printf "%s: %s" $place (index . 2)) -}}
{{- end -}}
