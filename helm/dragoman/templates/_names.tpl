{{- /* Names, labels and images. */ -}}

{{- /* (dict "name" NAME "most" COUNT "of" TEXT?) -> the name, cut to so many characters. A hash of TEXT (else of the name)
stands for what was cut off: two long names stay two. */ -}}
{{- define "dragoman.cut" -}}
{{- if gt (len .name) (int .most) -}}
{{- printf "%s-%s" (.name | trunc (sub .most 7 | int) | trimSuffix "-") (default .name .of | sha256sum | trunc 6) -}}
{{- else -}}
{{- .name -}}
{{- end -}}
{{- end -}}

{{- /* How the names of a release's objects begin. It ends with the chart's name, which no model has in its part: so no
object of release `dragoman`, with a model `x`, has the name of one of release `dragoman-x`. */ -}}
{{- define "dragoman.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := include "dragoman.cut" (dict "name" .Release.Name "most" (max 8 (sub 39 (len $name)))) -}}
{{- include "dragoman.cut" (dict "name" (ternary $name (printf "%s-%s" $release $name) (eq .Release.Name $name)) "most" 40) -}}
{{- end -}}
{{- end -}}

{{- /* (dict "root" $ "component" "gateway" "model" SLUG?) -> labels by which Pods are selected. They never change. */ -}}
{{- define "dragoman.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
dragoman-model: {{ . }}
{{- end }}
{{- end -}}

{{- /* Labels of an object: the selector's, and who made it. (dict "root" "component" "model"? "extra" LABELS?) */ -}}
{{- define "dragoman.labels" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" -}}
{{- $made := dict "app.kubernetes.io/part-of" "dragoman" "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/version" .root.Chart.AppVersion "helm.sh/chart" $chart -}}
{{- merge $made (include "dragoman.podLabels" . | fromYaml) | toYaml -}}
{{- end -}}

{{- /* Labels of a Pod. Nothing with a version in it: else every new chart would restart workers that did not change.
(dict "root" "component" "model"? "extra" LABELS?) */ -}}
{{- define "dragoman.podLabels" -}}
{{- merge (include "dragoman.selector" . | fromYaml) (default dict .extra) .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{- /* (dict "root" $ "image" IMAGE) -> reference */ -}}
{{- define "dragoman.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{- /* The account of a part's Pods: its own, or that of all. (dict "root" "own" SECTION "name" NAME), NAME being that of
the account that the part creates */ -}}
{{- define "dragoman.serviceAccount" -}}
{{- $all := .root.Values.serviceAccount -}}{{- $own := .own.serviceAccount -}}
{{- if $own.create -}}
{{ default .name $own.name }}
{{- else if $own.name -}}
{{ $own.name }}
{{- else if $all.create -}}
{{ default (include "dragoman.fullname" .root) $all.name }}
{{- else -}}
{{ default "default" $all.name }}
{{- end -}}
{{- end -}}

{{- /* What every Pod of the chart has. (dict "root" "own" SECTION "name" NAME), as for dragoman.serviceAccount */ -}}
{{- define "dragoman.podSecurity" -}}
serviceAccountName: {{ include "dragoman.serviceAccount" . }}
# Nothing here calls Kubernetes.
automountServiceAccountToken: false
# Else Kubernetes adds DRAGOMAN_* variables for Services, which the gateway refuses as unknown options.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- if not .root.Values.podSecurity.assignedIds }}
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- /* What every container of the chart has. */ -}}
{{- define "dragoman.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
