{{- /* Models: their values, names and what follows from them. */ -}}

{{- /* JSON: every model by name, with what `modelDefaults` says of it and what follows:
slug       its part of objects' names
object     the name of its objects
runs       the chart runs its workers
kind       Deployment, StatefulSet, LeaderWorkerSet or RayCluster
registers  its workers enter themselves into the registry
loadsNothing  nothing may come from a hub */ -}}
{{- define "dragoman.models" -}}
{{- $found := dict -}}
{{- range $name, $given := .Values.models -}}
  {{- $model := mergeOverwrite (deepCopy $.Values.modelDefaults) (deepCopy (default dict $given)) -}}
  {{- $slug := $name | lower | replace "." "-" | replace "_" "-" | replace ":" "-" | replace "/" "-" | trimSuffix "-" -}}
  {{- if gt (len $slug) 20 -}}
    {{- $slug = printf "%s-%s" ($slug | trunc 13 | trimSuffix "-") (sha256sum $name | trunc 6) -}}
  {{- end -}}
  {{- $runs := empty $model.urls -}}
  {{- $kind := ternary "StatefulSet" "Deployment" (eq $model.cache.mode "claimPerReplica") -}}
  {{- if gt (int $model.nodes) 1 -}}{{- $kind = $model.multiNode -}}{{- end -}}
  {{- $auto := and (ne $.Values.redis.mode "none") (or (eq $.Values.redis.mode "valkey") (eq $.Values.redis.external.topology "single")) -}}
  {{- $registers := and $runs (eq $model.engine "vllm") (or (eq $model.discovery "redis") (and (eq $model.discovery "auto") $auto)) -}}
  {{- if not $model.image.repository -}}
    {{- $_ := set $model.image "repository" (ternary "dragoman/embedded" "dragoman/worker" (eq $model.engine "embedded")) -}}
  {{- end -}}
  {{- $events := $model.kvEvents -}}
  {{- if and $runs $events.enabled (not (hasKey $model.gateway "kv_events")) -}}
    {{- $_ := set $model.gateway "kv_events" (dict "port" (int $events.port) "replay_port" (int $events.replayPort)) -}}
  {{- end -}}
  {{- $facts := dict "slug" $slug "object" (printf "%s-%s" (include "dragoman.fullname" $) $slug) "runs" $runs "kind" $kind "registers" $registers "loadsNothing" (or $model.offline $.Values.airGapped) -}}
  {{- $_ := set $found $name (mergeOverwrite $model $facts) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* JSON: the ports where a model's workers tell what they have cached. */ -}}
{{- define "dragoman.kvPorts" -}}
{{- $ports := list -}}
{{- if hasKey .gateway "kv_events" -}}
  {{- $events := default dict .gateway.kv_events -}}
  {{- $ports = compact (list (default 5557 $events.port) $events.replay_port) -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{- /* Whether one of the models may have no worker at all: "true" or "". */ -}}
{{- define "dragoman.sleeps" -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
{{- if and $model.runs $model.autoscaling.enabled (eq (int $model.autoscaling.minReplicas) 0) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- /* The longest that a model of the chart may take to load, in seconds; 0 where the chart runs none. */ -}}
{{- define "dragoman.longestLoad" -}}
{{- $longest := 0 -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
{{- if $model.runs -}}{{- $longest = max $longest (int $model.loadTimeout) -}}{{- end -}}
{{- end -}}
{{- $longest -}}
{{- end -}}

{{- /* Where the Redis-protocol server is, as a list in JSON. */ -}}
{{- define "dragoman.redisAddresses" -}}
{{- if eq .Values.redis.mode "valkey" -}}
{{- list (printf "%s-valkey:6379" (include "dragoman.fullname" .)) | toJson -}}
{{- else -}}
{{- .Values.redis.external.addresses | toJson -}}
{{- end -}}
{{- end -}}

{{- /* Whether Redis asks for a password: "true" or "". */ -}}
{{- define "dragoman.redisPassword" -}}
{{- if or (eq .Values.redis.mode "valkey") (and (eq .Values.redis.mode "external") (not .Values.redis.external.noPassword)) }}true{{ end -}}
{{- end -}}
