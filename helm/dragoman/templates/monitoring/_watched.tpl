{{- /* Metadata of objects that a Prometheus operator or Grafana's sidecar selects. In a namespace for objects of many
releases the name has that of the release in it. (dict "root" "component" "section" "suffix" TEXT?) */ -}}
{{- define "dragoman.watched" -}}
{{- $name := include "dragoman.fullname" .root -}}
{{- with .section.namespace -}}
namespace: {{ . }}
{{- if ne . $.root.Release.Namespace }}{{ $name = printf "%s-%s" $.root.Release.Namespace $name }}{{ end }}
{{ end -}}
name: {{ $name }}{{ .suffix }}
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
