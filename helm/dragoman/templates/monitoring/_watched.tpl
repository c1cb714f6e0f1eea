{{- /* Metadata of objects that a Prometheus operator or Grafana's sidecar selects. In a namespace for objects of many
releases the name has that of the release in it, before a dot, which a namespace's name cannot have. (dict "root" "component" "section" "suffix" TEXT?) */ -}}
{{- define "dragoman.watched" -}}
{{- with .section.namespace -}}
namespace: {{ . }}
{{ end -}}
name: {{ include "dragoman.watchedName" . }}{{ .suffix }}
labels:
  {{- include "dragoman.labels" (dict "root" .root "component" .component "extra" .section.labels) | nindent 2 }}
{{- end -}}

{{- /* The groups of a file of alerts, as `alerts` of the values will have them. (dict "groups" LIST "alerts" VALUES) */ -}}
{{- define "dragoman.alertGroups" -}}
{{- $alerts := .alerts -}}{{- $groups := list -}}
{{- range $group := .groups -}}
  {{- $rules := list -}}
  {{- range $rule := $group.rules -}}
    {{- $own := default dict (get $alerts (default "" $rule.alert)) -}}
    {{- if hasKey $own "threshold" -}}
      {{- /* The first number that is compared with, wherever it is. */ -}}
      {{- $number := regexFind "[<>=]=? *[0-9][0-9.]*" $rule.expr | regexFind "[0-9][0-9.]*$" -}}
      {{- if not $number -}}{{- fail (printf "monitoring.prometheusRule.alerts.%s.threshold: its expression compares with no number" $rule.alert) -}}{{- end -}}
      {{- $place := printf `([<>=]=? *)%s([^0-9.]|$)` (replace "." "[.]" $number) -}}
      {{- $_ := set $rule "expr" (regexReplaceAll $place $rule.expr (printf "${1}%v${2}" $own.threshold)) -}}
    {{- end -}}
    {{- with $own.for -}}{{- $_ := set $rule "for" . -}}{{- end -}}
    {{- /* Texts of alerts hold the numbers that were shipped. */ -}}
    {{- $changed := list -}}
    {{- range $key := list "threshold" "for" -}}{{- if hasKey $own $key -}}{{- $changed = append $changed (printf "%s: %v" $key (get $own $key)) -}}{{- end -}}{{- end -}}
    {{- with $changed -}}{{- $_ := set $rule.annotations "changed" (join ", " .) -}}{{- end -}}
    {{- with $own.severity -}}{{- $_ := set $rule.labels "severity" . -}}{{- end -}}
    {{- if ne (toString $own.enabled) "false" -}}{{- $rules = append $rules $rule -}}{{- end -}}
  {{- end -}}
  {{- with $rules -}}{{- $groups = append $groups (merge (dict "rules" .) $group) -}}{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{- /* The name of such an object without its suffix. */ -}}
{{- define "dragoman.watchedName" -}}
{{- $name := include "dragoman.fullname" .root -}}
{{- with .section.namespace -}}{{- if ne . $.root.Release.Namespace -}}{{- $name = printf "%s.%s" $.root.Release.Namespace $name -}}{{- end -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{- /* Labels, as in PromQL, of the series that one release's gateways ("serviceMonitor") or workers ("podMonitor") have. A
ServiceMonitor makes the job of its Service's name, a PodMonitor of its own. Where the chart renders none, and the values
name no job, the release cannot be told from others of its namespace. (dict "root" "monitor") */ -}}
{{- define "dragoman.series" -}}
{{- $section := get .root.Values.monitoring .monitor -}}{{- $job := $section.job -}}
{{- if and $section.enabled (not $job) -}}
  {{- if eq .monitor "serviceMonitor" -}}{{- $job = printf "%s-metrics" (include "dragoman.fullname" .root) -}}
  {{- else -}}{{- $job = printf "%s/%s-workers" (default .root.Release.Namespace $section.namespace) (include "dragoman.watchedName" (dict "root" .root "section" $section)) -}}{{- end -}}
{{- end -}}
namespace={{ .root.Release.Namespace | quote }}{{ with $job }},job={{ . | quote }}{{ end }}
{{- end -}}
