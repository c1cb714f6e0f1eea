{{- /* Metadata, beside the name, of objects that a Prometheus operator or Grafana's sidecar selects. (dict "root" "component" "section") */ -}}
{{- define "dragoman.watched" -}}
{{- with .section.namespace -}}
namespace: {{ . }}
{{ end -}}
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
    {{- with $own.severity -}}{{- $_ := set $rule.labels "severity" . -}}{{- end -}}
    {{- if ne (toString $own.enabled) "false" -}}{{- $rules = append $rules $rule -}}{{- end -}}
  {{- end -}}
  {{- with $rules -}}{{- $groups = append $groups (merge (dict "rules" .) $group) -}}{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}
