{{- /* gateway.yaml, made from the models, from redis and auth, and from gateway.config. */ -}}

{{- /* One value, gateway.stopSeconds, bounds a stop: 5 s preStop, then drain_s with notice_s in it, then at most 8 s to
close connections, and 2 s to spare. */ -}}
{{- define "dragoman.preStopSeconds" -}}5{{- end -}}
{{- define "dragoman.drainSeconds" -}}{{ sub (int .Values.gateway.stopSeconds) 15 }}{{- end -}}
{{- define "dragoman.noticeSeconds" -}}{{ min 10 (div (int (include "dragoman.drainSeconds" .)) 2) }}{{- end -}}

{{- define "dragoman.gatewayYaml" -}}
{{- $host := ternary "::" "0.0.0.0" .Values.ipv6 -}}
{{- $config := deepCopy .Values.gateway.config -}}
{{- $_ := set $config "listen" (merge (dict "host" $host "port" 8080) (default dict $config.listen)) -}}
{{- /* A container that restarts finds it again; a Pod that is replaced is not ready before it has read its sources. */ -}}
{{- $_ := set $config "start" (merge (dict "known_folder" "/var/lib/dragoman/known") (default dict $config.start)) -}}
{{- $_ := set $config "metrics" (dict "listen" (printf "%s:9090" (ternary "[::]" "0.0.0.0" .Values.ipv6))) -}}
{{- $drain := dict "drain_s" (int (include "dragoman.drainSeconds" .)) "notice_s" (int (include "dragoman.noticeSeconds" .)) -}}
{{- $_ := set $config "relay" (merge $drain (default dict $config.relay)) -}}
{{- $_ := set $config "auth" .Values.auth.mode -}}
{{- if .Values.auth.existingSecret -}}
  {{- $_ := set $config "keys_file" (printf "/run/dragoman/keys/%s" .Values.auth.secretKey) -}}
{{- end -}}
{{- if .Values.console.enabled -}}
  {{- $console := dict "enabled" true -}}
  {{- if .Values.console.existingSecret -}}
    {{- $_ := set $console "key_file" (printf "/run/dragoman/console/%s" .Values.console.secretKey) -}}
  {{- end -}}
  {{- if .Values.console.oidc -}}
    {{- $oidc := deepCopy .Values.console.oidc -}}
    {{- range $name := list "client_secret" "session_secret" -}}
      {{- $_ := set $oidc (printf "%s_file" $name) (printf "/run/dragoman/console-oidc/%s" $name) -}}
    {{- end -}}
    {{- with .Values.console.oidcCaSecret -}}
      {{- if .name -}}{{- $_ := set $oidc "ca_file" (printf "/run/dragoman/console-ca/%s" .key) -}}{{- end -}}
    {{- end -}}
    {{- $_ := set $console "oidc" $oidc -}}
  {{- end -}}
  {{- $_ := set $config "console" $console -}}
{{- end -}}
{{- if .Values.gateway.batches.enabled -}}
  {{- $place := dict "directory" "/var/lib/dragoman/batches" -}}
  {{- with .Values.gateway.batches.bucket -}}{{- if .url -}}
    {{- $bucket := dict "url" .url "name" .name "region" .region -}}
    {{- if .prefix -}}{{- $_ := set $bucket "prefix" .prefix -}}{{- end -}}
    {{- if .existingSecret -}}
      {{- range $key := list "access_key_id" "secret_access_key" -}}
        {{- $_ := set $bucket (printf "%s_file" $key) (printf "/run/dragoman/bucket/%s" $key) -}}
      {{- end -}}
    {{- end -}}
    {{- if .caSecret.name -}}{{- $_ := set $bucket "ca_file" (printf "/run/dragoman/bucket-ca/%s" .caSecret.key) -}}{{- end -}}
    {{- $place = dict "bucket" $bucket -}}
  {{- end -}}{{- end -}}
  {{- $_ := set $config "batches" (merge $place (default dict $config.batches)) -}}
{{- end -}}
{{- if .Values.gateway.promptLog.enabled -}}
  {{- $_ := set $config "prompt_log" (merge (dict "directory" "/var/lib/dragoman/prompts") (default dict $config.prompt_log)) -}}
{{- end -}}
{{- if ne .Values.redis.mode "none" -}}
  {{- $_ := set $config "redis" (include "dragoman.gatewayRedis" . | fromJson) -}}
  {{- $copies := ternary .Values.gateway.autoscaling.minReplicas .Values.gateway.replicas .Values.gateway.autoscaling.enabled -}}
  {{- $_ := set $config "limiter" (merge (default dict $config.limiter) (dict "replicas" (max 1 (int $copies)))) -}}
{{- end -}}
{{- $models := dict -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
  {{- $_ := set $models $name (include "dragoman.gatewayModel" $model | fromJson) -}}
{{- end -}}
{{- $_ := set $config "models" $models -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* One model -> its entry, JSON. */ -}}
{{- define "dragoman.gatewayModel" -}}
{{- $entry := deepCopy .gateway -}}
{{- if not .runs -}}
  {{- $_ := set $entry "backend" .backend -}}
  {{- $_ := set $entry "workers" .urls -}}
{{- else -}}
  {{- $_ := set $entry "backend" (ternary "llamacpp" "vllm" (eq .engine "embedded")) -}}
  {{- $_ := set $entry "discover" (ternary (dict "redis" true) (dict "dns" (printf "%s:8000" .object)) .registers) -}}
{{- end -}}
{{- if .sequences -}}{{- $_ := set $entry "max_in_flight" (int .sequences) -}}{{- end -}}
{{- if .apiKeySecret.name -}}
  {{- $_ := set $entry "api_key_file" (printf "/run/dragoman/models/%s/%s" .slug .apiKeySecret.key) -}}
{{- end -}}
{{- if .caSecret.name -}}
  {{- $_ := set $entry "ca_file" (printf "/run/dragoman/ca/%s/%s" .slug .caSecret.key) -}}
{{- end -}}
{{- toJson $entry -}}
{{- end -}}

{{- /* The beginning of every key in Redis. An upgrade keeps the one that the release has: gateways and workers of two
namespaces would not find each other while they are replaced. 0.1.0 names none, and has `dragoman`. */ -}}
{{- define "dragoman.redisNamespace" -}}
{{- $namespace := printf "%s.%s" .Release.Namespace .Release.Name -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace (include "dragoman.fullname" .) -}}
  {{- $live := fromYaml (get (default dict .data) "gateway.yaml") -}}
  {{- if $live.redis -}}{{- $namespace = default "dragoman" $live.redis.namespace -}}{{- end -}}
{{- end -}}
{{- default $namespace .Values.redis.namespace -}}
{{- end -}}

{{- /* The section redis, JSON. */ -}}
{{- define "dragoman.gatewayRedis" -}}
{{- $redis := dict "addresses" (include "dragoman.redisAddresses" . | fromJsonArray) "namespace" (include "dragoman.redisNamespace" .) -}}
{{- if include "dragoman.redisPassword" . -}}
  {{- $_ := set $redis "password_file" (printf "/run/dragoman/redis/%s" .Values.redis.passwordKey) -}}
{{- end -}}
{{- if eq .Values.redis.mode "external" -}}
  {{- $given := .Values.redis.external -}}
  {{- $_ := set $redis "mode" $given.topology -}}
  {{- if eq $given.topology "sentinel" -}}
    {{- $_ := set $redis "sentinel_name" $given.sentinelName -}}
    {{- $_ := set $redis "sentinel_auth" $given.sentinelAuth -}}
  {{- end -}}
  {{- if $given.db -}}{{- $_ := set $redis "db" (int $given.db) -}}{{- end -}}
  {{- if $given.username -}}{{- $_ := set $redis "username" $given.username -}}{{- end -}}
  {{- if $given.tls -}}{{- $_ := set $redis "tls" true -}}{{- end -}}
  {{- if $given.caSecret.name -}}
    {{- $_ := set $redis "ca_file" (printf "/run/dragoman/redis-ca/%s" $given.caSecret.key) -}}
  {{- end -}}
{{- end -}}
{{- toJson $redis -}}
{{- end -}}

{{- /* Options that hold secrets and have no file: variables, which the gateway reads over gateway.yaml. A model's name need
not be one that a variable can have: the kubelet puts the Secrets' JSON into that of `models`. */ -}}
{{- define "dragoman.gatewayEnv" -}}
{{- $secrets := dict -}}{{- $models := list -}}
{{- with .Values.gateway.tracingHeadersSecret -}}{{- if .name -}}{{- $_ := set $secrets "DRAGOMAN_TRACING__HEADERS" . -}}{{- end -}}{{- end -}}
{{- with .Values.gateway.searchHeadersSecret -}}{{- if .name -}}{{- $_ := set $secrets "DRAGOMAN_TOOLS__WEB_SEARCH__HEADERS" . -}}{{- end -}}{{- end -}}
{{- range $name, $secret := .Values.gateway.guardHeadersSecrets -}}
  {{- $variable := printf "DRAGOMAN_GUARDS__%s__HEADERS" (regexReplaceAll "[^A-Z0-9]" (upper $name) "_") -}}
  {{- $_ := set $secrets $variable (dict "name" $secret "key" "headers") -}}
{{- end -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
  {{- if $model.headersSecret.name -}}
    {{- $variable := printf "HEADERS_%s" ($model.slug | upper | replace "-" "_") -}}
    {{- $_ := set $secrets $variable $model.headersSecret -}}
    {{- $models = append $models (printf "%s: {\"headers\": $(%s)}" (toJson $name) $variable) -}}
  {{- end -}}
{{- end -}}
{{- range $variable, $secret := $secrets }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.name }}
      key: {{ $secret.key }}
{{- end }}
{{- with $models }}
- name: DRAGOMAN_MODELS
  value: {{ printf "{%s}" (join ", " .) | quote }}
{{- end }}
{{- end -}}

{{- /* Secrets that the gateway reads: folder below /run/dragoman -> name, JSON. Mounted as folders, so that a changed
Secret arrives in a running Pod. */ -}}
{{- define "dragoman.gatewaySecrets" -}}
{{- $found := dict -}}
{{- with .Values.auth.existingSecret -}}{{- $_ := set $found "keys" . -}}{{- end -}}
{{- with .Values.console.existingSecret -}}{{- $_ := set $found "console" . -}}{{- end -}}
{{- with .Values.console.oidcExistingSecret -}}{{- $_ := set $found "console-oidc" . -}}{{- end -}}
{{- with .Values.console.oidcCaSecret.name -}}{{- $_ := set $found "console-ca" . -}}{{- end -}}
{{- if include "dragoman.redisPassword" . -}}{{- $_ := set $found "redis" .Values.redis.existingSecret -}}{{- end -}}
{{- if and (eq .Values.redis.mode "external") .Values.redis.external.caSecret.name -}}
  {{- $_ := set $found "redis-ca" .Values.redis.external.caSecret.name -}}
{{- end -}}
{{- with .Values.gateway.batches.bucket -}}
  {{- with .existingSecret -}}{{- $_ := set $found "bucket" . -}}{{- end -}}
  {{- with .caSecret.name -}}{{- $_ := set $found "bucket-ca" . -}}{{- end -}}
{{- end -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
  {{- with $model.apiKeySecret.name -}}{{- $_ := set $found (printf "models/%s" $model.slug) . -}}{{- end -}}
  {{- with $model.caSecret.name -}}{{- $_ := set $found (printf "ca/%s" $model.slug) . -}}{{- end -}}
{{- end -}}
{{- range $name, $secret := .Values.gateway.secrets -}}{{- $_ := set $found (printf "secrets/%s" $name) $secret -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}
