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
