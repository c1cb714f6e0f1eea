{{- /* Egress to DNS, for every policy. */ -}}
{{- define "dragoman.dnsEgress" -}}
- ports:
    {{- range .Values.networkPolicy.dnsPorts }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* Egress to the Redis-protocol server; nothing where there is none. */ -}}
{{- define "dragoman.redisEgress" -}}
{{- if eq .Values.redis.mode "valkey" }}
- to:
    - podSelector:
        matchLabels:
          {{- include "dragoman.selector" (dict "root" . "component" "valkey") | nindent 10 }}
  ports:
    - port: 6379
{{- else if eq .Values.redis.mode "external" }}
- ports:
    {{- /* Sentinels and nodes name further servers, and a Service's port need not be that of its Pods. */ -}}
    {{- $external := .Values.redis.external }}
    {{- $ports := ternary (list "6379") list (and (ne $external.topology "single") (empty $external.dataPorts)) }}
    {{- range concat $external.addresses $external.dataPorts }}{{ $ports = append $ports (splitList ":" (toString .) | last) }}{{ end }}
    {{- range uniq $ports }}
    - port: {{ . }}
    {{- end }}
  {{- with .Values.redis.external.egressTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The `to` or `from` of a rule for Pods of the chart. On their node's network (`host`) they have its address, which no
selector of Pods matches. (dict "root" "key" "to"|"from" "pods" PEERS "host" BOOL) -> nothing for any address */ -}}
{{- define "dragoman.peers" -}}
{{- $nodes := .root.Values.networkPolicy.nodes -}}
{{- $peers := .pods -}}
{{- if .host -}}{{- $peers = ternary list (concat $peers $nodes) (empty $nodes) -}}{{- end -}}
{{- with $peers -}}
{{ $.key }}:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- /* (dict "urls" LIST "to" PEERS "ports" LIST) -> rules to where these URLs lead. A policy sees the port of a Pod, which is
not that of its Service: without `ports` of the Pods themselves, each port is open in the namespace of a host that may be a
Service (`name`, `name.namespace`, `name.namespace.svc…`), or at the peers. */ -}}
{{- define "dragoman.urlsEgress" -}}
{{- $ports := .ports -}}{{- $spaces := dict -}}
{{- range .urls -}}
  {{- $url := urlParse . -}}
  {{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
  {{- $ports = append $ports (default (ternary "443" "80" (eq $url.scheme "https")) $port) -}}
  {{- $parts := splitList "." (regexReplaceAll ":[0-9]+$" $url.host "") -}}
  {{- if or (le (len $parts) 2) (eq (index $parts 2) "svc") -}}
    {{- $_ := set $spaces (ternary "" (index (append $parts "") 1) (eq (len $parts) 1)) true -}}
  {{- end -}}
{{- end -}}
{{- $open := and (empty .ports) $spaces }}
- ports:
    {{- range $ports | toStrings | uniq }}
    - port: {{ . }}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if and $open .to }}
- to:
    {{- toYaml .to | nindent 4 }}
{{- else if $open }}
- to:
    {{- range $space, $_ := $spaces }}
    {{- if $space }}
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ $space }}
    {{- else }}
    - podSelector: {}
    {{- end }}
    {{- end }}
{{- end }}
{{- end -}}

{{- /* Egress to what gives a part's Pods the identity that its account stands for; nothing unless it is asked for. It takes the
part's `serviceAccount`. EKS: the agent of Pod Identity on the node. GKE: its metadata server, at 988 without Dataplane V2.
IRSA and Azure: the token that a webhook mounts is exchanged by HTTPS. */ -}}
{{- define "dragoman.identityEgress" -}}
{{- if eq .identity "eks" }}
- to: [{ipBlock: {cidr: 169.254.170.23/32}}, {ipBlock: {cidr: "fd00:ec2::23/128"}}]
  ports: [{port: 80}]
{{- else if eq .identity "gke" }}
- to: [{ipBlock: {cidr: 169.254.169.252/32}}, {ipBlock: {cidr: 169.254.169.254/32}}]
  ports: [{port: 80}, {port: 988}]
{{- else if has .identity (list "irsa" "azure") }}
- ports: [{port: 443}]
{{- end }}
{{- end -}}
