{{- /* Texts of the values that have not the form that they must have (files/forms.yaml), a line each: the value, and its form
in words, but not the text, which may be a secret. (dict "tree" NODE "value" ANY "at" PATH "forms" FORMS "of" TREES), with
trees of files/formed.json */ -}}
{{- define "dragoman.formFaults" -}}
{{- $about := . -}}{{- $tree := .tree -}}
{{- with $tree.of }}{{ include "dragoman.formFaults" (dict "tree" (get $about.of .) "value" $about.value "at" $about.at "forms" $about.forms "of" $about.of) }}{{ end -}}
{{- if kindIs "string" .value -}}
  {{- with $tree.form -}}{{- $form := get $about.forms . -}}
    {{- if not (regexMatch $form.matches $about.value) }}{{ printf "%s: must be %s\n" $about.at $form.words }}{{ end -}}
  {{- end -}}
{{- else if kindIs "map" .value -}}
  {{- range $key, $value := .value -}}
    {{- with $tree.names -}}{{- $form := get $about.forms . -}}
      {{- if not (regexMatch $form.matches $key) }}{{ printf "%s: the key %q must be %s\n" $about.at $key $form.words }}{{ end -}}
    {{- end -}}
    {{- with get (default dict $tree.keys) $key | default $tree.each }}{{ include "dragoman.formFaults" (dict "tree" . "value" $value "at" (printf "%s.%s" $about.at $key | trimPrefix ".") "forms" $about.forms "of" $about.of) }}{{ end -}}
  {{- end -}}
{{- else if and $tree.items (kindIs "slice" .value) -}}
  {{- range $index, $value := .value -}}
    {{- include "dragoman.formFaults" (dict "tree" $tree.items "value" $value "at" (printf "%s.%d" $about.at $index) "forms" $about.forms "of" $about.of) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "dragoman.forms" -}}
{{- $formed := .Files.Get "files/formed.json" | fromJson -}}
{{- $faults := include "dragoman.formFaults" (dict "tree" $formed.values "value" .Values.AsMap "at" "" "of" $formed.of "forms" (.Files.Get "files/forms.yaml" | fromYaml)) -}}
{{- if $faults -}}{{- fail (trimSuffix "\n" $faults) -}}{{- end -}}
{{- end -}}
