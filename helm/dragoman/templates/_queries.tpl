{{- /* PromQL of one model; each sum counts as 0 where nothing is there to add up. */ -}}
{{- define "dragoman.waitingQuery" -}}
(sum(vllm:num_requests_waiting{namespace="{{ .namespace }}",model_name="{{ .name }}"}) or vector(0)) + (sum(dragoman_queue_length{namespace="{{ .namespace }}",model="{{ .name }}"}) or vector(0))
{{- end -}}
{{- define "dragoman.demandQuery" -}}
{{- $asked := printf "dragoman_requests_total{namespace=\"%s\",model=\"%s\"}" .namespace .name -}}
(sum(increase({{ $asked }}[5m])) or vector(0)) + (count({{ $asked }} unless {{ $asked }} offset 5m) or vector(0)) + (sum(vllm:num_requests_running{namespace="{{ .namespace }}",model_name="{{ .name }}"}) or vector(0))
{{- end -}}
