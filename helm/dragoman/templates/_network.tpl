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
    {{- $ports := list }}
    {{- range .Values.redis.external.addresses }}{{ $ports = append $ports (splitList ":" . | last) }}{{ end }}
    {{- range uniq $ports }}
    - port: {{ . }}
    {{- end }}
  {{- with .Values.redis.external.egressTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
