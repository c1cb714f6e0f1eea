{{- /* A Pod of the chart: what the chart says, and what a section of values adds to it or says
in its place. (dict "own" SECTION "pod" TEXT "rank" BOOL?), TEXT being YAML of the Pod's metadata and spec; the first
container is the main one. A Pod with "rank" only computes: it has no probes and its own end. */ -}}
{{- define "dragoman.pod" -}}
{{- $own := .own -}}
{{- $pod := fromYaml .pod -}}
{{- $spec := $pod.spec -}}
{{- $main := first $spec.containers -}}
{{- with $own.podAnnotations -}}{{- $_ := set $pod.metadata "annotations" (merge (default dict $pod.metadata.annotations) .) -}}{{- end -}}

{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "schedulerName" "hostAliases" "hostNetwork" "dnsPolicy" "dnsConfig" -}}
  {{- with get $own $key -}}{{- $_ := set $spec $key . -}}{{- end -}}
{{- end -}}
{{- /* On the node's network, names of Services are known by this policy alone. */ -}}
{{- if and $own.hostNetwork (not $own.dnsPolicy) -}}{{- $_ := set $spec "dnsPolicy" "ClusterFirstWithHostNet" -}}{{- end -}}
{{- with $own.topologySpreadConstraints -}}{{- $_ := set $spec "topologySpreadConstraints" . -}}{{- end -}}
{{- with $own.initContainers -}}{{- $_ := set $spec "initContainers" . -}}{{- end -}}
{{- $_ := set $spec "containers" (concat $spec.containers (default list $own.sidecars)) -}}
{{- $_ := set $spec "securityContext" (mergeOverwrite $spec.securityContext (default dict $own.podSecurityContext)) -}}
{{- $_ := set $main "securityContext" (mergeOverwrite $main.securityContext (default dict $own.securityContext)) -}}

{{- /* An entry with a name of the chart's stands in its place. */ -}}
{{- range $part := list (list $main "env" "name") (list $main "volumeMounts" "mountPath") (list $spec "volumes" "name") -}}
  {{- $holder := index $part 0 -}}{{- $list := index $part 1 -}}{{- $key := index $part 2 -}}
  {{- $given := default list (get $own $list) -}}
  {{- $names := list -}}
  {{- range $given -}}{{- $names = append $names (get . $key) -}}{{- end -}}
  {{- $kept := list -}}
  {{- range default list (get $holder $list) -}}{{- if not (has (get . $key) $names) -}}{{- $kept = append $kept . -}}{{- end -}}{{- end -}}
  {{- with concat $kept $given -}}{{- $_ := set $holder $list . -}}{{- end -}}
{{- end -}}
{{- with $own.envFrom -}}{{- $_ := set $main "envFrom" . -}}{{- end -}}

{{- if not .rank -}}
  {{- range $name, $probe := default dict $own.probes -}}
    {{- $key := printf "%sProbe" $name -}}
    {{- $chart := default dict (get $main $key) -}}
    {{- if or $probe.exec $probe.tcpSocket $probe.grpc -}}{{- $chart = omit $chart "httpGet" -}}{{- end -}}
    {{- with mergeOverwrite $chart $probe -}}{{- $_ := set $main $key . -}}{{- end -}}
  {{- end -}}
  {{- range $name, $hook := default dict $own.lifecycle -}}
    {{- $_ := set $main "lifecycle" (mergeOverwrite (omit (default dict $main.lifecycle) $name) (dict $name $hook)) -}}
  {{- end -}}
{{- end -}}
{{- toYaml $pod -}}
{{- end -}}

{{- /* A section of values for a Pod that runs the gateway's image beside it: where it says nothing of nodes, it runs on those
of the gateways. (dict "root" "own" SECTION) -> JSON */ -}}
{{- define "dragoman.besideGateway" -}}
{{- $own := deepCopy .own -}}
{{- range $key := list "nodeSelector" "tolerations" -}}
  {{- if not (get $own $key) -}}{{- $_ := set $own $key (get $.root.Values.gateway $key) -}}{{- end -}}
{{- end -}}
{{- toJson $own -}}
{{- end -}}

{{- /* The number of copies of a workload. With an autoscaler it is what runs at the moment: a field that is left out would
be taken from the live object by the upgrade that switches the autoscaler on, and Kubernetes would set 1. Without a cluster
(`helm template`), and before the first install, there is none. (dict "root" "section" "kind" "name") */ -}}
{{- define "dragoman.replicas" -}}
{{- if not .section.autoscaling.enabled -}}
replicas: {{ .section.replicas }}
{{- else -}}
  {{- $version := ternary "leaderworkerset.x-k8s.io/v1" "apps/v1" (eq .kind "LeaderWorkerSet") -}}
  {{- $live := lookup $version .kind .root.Release.Namespace .name -}}
  {{- if hasKey (default dict $live.spec) "replicas" -}}
replicas: {{ int $live.spec.replicas }}
  {{- end -}}
{{- end -}}
{{- end -}}
