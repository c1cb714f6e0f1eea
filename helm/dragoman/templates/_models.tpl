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
  {{- $slug := regexReplaceAll "-+$" (regexReplaceAll "[^a-z0-9]" (lower $name) "-") "" -}}
  {{- $slug = include "dragoman.cut" (dict "name" $slug "most" 20 "of" $name) -}}
  {{- if contains (default $.Chart.Name $.Values.nameOverride) $slug -}}{{- $slug = printf "m-%s" (sha256sum $name | trunc 6) -}}{{- end -}}
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
  {{- /* Behind these names come numbers, and in labels a hash; a label holds 63 characters. */ -}}
  {{- $most := get (dict "StatefulSet" 52 "LeaderWorkerSet" 51 "RayCluster" 47) $kind | default 63 -}}
  {{- $object := include "dragoman.cut" (dict "name" (printf "%s-%s" (include "dragoman.fullname" $) $slug) "most" $most) -}}
  {{- $facts := dict "slug" $slug "object" $object "runs" $runs "kind" $kind "registers" $registers "loadsNothing" (or $model.offline $.Values.airGapped) -}}
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

{{- /* The names of the models that may have no worker at all, as alternatives of a pattern; "" if there are none. */ -}}
{{- define "dragoman.sleeping" -}}
{{- $names := list -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
{{- if and $model.runs $model.autoscaling.enabled (eq (int $model.autoscaling.minReplicas) 0) -}}{{- $names = append $names (replace "." "[.]" $name) -}}{{- end -}}
{{- end -}}
{{- join "|" $names -}}
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

{{- /* The model that `helm test` and the notes ask: the one that is named, else the first that chats, else the first. A
model that pools, or is open for other paths alone, does not chat. One that sleeps has to be loaded first: it is asked if none
is awake. */ -}}
{{- define "dragoman.testModel" -}}
{{- $found := .Values.test.model -}}{{- $asleep := "" -}}
{{- range $name, $model := include "dragoman.models" . | fromJson -}}
  {{- $pools := regexMatch "(^| )--?(runner|convert|task)[ =](pooling|embed|embedding|classify|score|reward)( |$)" (join " " $model.args) -}}
  {{- $closed := and (kindIs "slice" $model.gateway.paths) (not (has "/v1/chat/completions" $model.gateway.paths)) -}}
  {{- $without := and $model.gateway.features (empty (without $model.gateway.features "embeddings" "scores")) -}}
  {{- $sleeps := and $model.runs $model.autoscaling.enabled (eq (int $model.autoscaling.minReplicas) 0) -}}
  {{- if not (or $pools $closed $without) -}}
    {{- if $sleeps -}}{{- $asleep = default $name $asleep -}}{{- else -}}{{- $found = default $name $found -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- coalesce $found $asleep (keys .Values.models | sortAlpha | first) -}}
{{- end -}}
