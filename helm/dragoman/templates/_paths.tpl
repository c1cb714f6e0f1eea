{{- /* Paths under which dialects answer, as a list in JSON; all of them without `dialects`. Paths are never rewritten: a
signed request (SigV4) is signed for its path. (dict "root" "dialects") */ -}}
{{- define "dragoman.dialectPaths" -}}
{{- $own := .root.Files.Get "files/dialects.json" | fromJson -}}
{{- $found := list -}}
{{- range $dialect := default (list) .dialects -}}
  {{- $options := get (default dict $.root.Values.gateway.config.dialects) $dialect | default dict -}}
  {{- $one := get $own $dialect -}}
  {{- range default $one.prefixes $options.prefixes -}}
    {{- $prefix := trimSuffix "/" . -}}
    {{- $found = concat $found (ternary $one.root (list $prefix) (empty $prefix)) -}}
  {{- end -}}
  {{- $found = concat $found $one.fixed -}}
{{- end -}}
{{- default (list "/") (uniq $found) | toJson -}}
{{- end -}}

{{- /* Addresses for clients outside, a line each: the hosts of the Ingress and of the HTTPRoute, with the dialects of those
that have only some. Whether a Gateway's listener has TLS is not known here: the line is without a scheme. */ -}}
{{- define "dragoman.addresses" -}}
{{- $tls := list -}}
{{- range .Values.ingress.tls -}}{{- $tls = concat $tls .hosts -}}{{- end -}}
{{- range $where := list "ingress" "httpRoute" -}}
  {{- $section := get $.Values $where -}}
  {{- if $section.enabled -}}
    {{- range $section.hosts }}
{{ if eq $where "ingress" }}{{ ternary "https" "http" (or (has .host $tls) (has (regexReplaceAll "^[^.]+" .host "*") $tls)) }}://{{ end }}{{ .host }}
      {{- with .dialects }} ({{ join ", " . }}){{ end }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
