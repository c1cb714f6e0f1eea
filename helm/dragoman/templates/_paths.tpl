{{- /* Paths under which dialects answer, as a list in JSON; all of them without `dialects`. Paths are never rewritten: a
signed request (SigV4) is signed for its path. (dict "root" "dialects") */ -}}
{{- define "dragoman.dialectPaths" -}}
{{- $own := dict "openai" (list "/" "/openai") "sagemaker" (list "/sagemaker") "azure" (list "/azure") "ollama" (list "/ollama") "friendli" (list "/friendli") -}}
{{- $found := list -}}
{{- range $dialect := default (list) .dialects -}}
  {{- $options := get (default dict $.root.Values.gateway.config.dialects) $dialect | default dict -}}
  {{- range default (get $own $dialect) $options.prefixes -}}
    {{- /* At the root, OpenAI's paths begin with /v1. */ -}}
    {{- $found = append $found (ternary "/v1" (default "/" (trimSuffix "/" .)) (and (eq . "/") (eq $dialect "openai"))) -}}
  {{- end -}}
  {{- if eq $dialect "sagemaker" -}}{{- $found = concat $found (list "/invocations" "/ping") -}}{{- end -}}
{{- end -}}
{{- default (list "/") (uniq $found) | toJson -}}
{{- end -}}
