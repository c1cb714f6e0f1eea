{{- /* PromQL of one model; each sum counts as 0 where nothing is there to add up. (dict "gateways" SELECTOR "workers" SELECTOR
"name" NAME), SELECTOR being the labels of one release's series */ -}}
{{- define "dragoman.waitingQuery" -}}
(sum(vllm:num_requests_waiting{ {{- .workers }},model_name="{{ .name }}"}) or vector(0)) + (sum(dragoman_queue_length{ {{- .gateways }},model="{{ .name }}"}) or vector(0))
{{- end -}}
{{- define "dragoman.demandQuery" -}}
{{- $asked := printf "dragoman_requests_total{%s,model=\"%s\"}" .gateways .name -}}
(sum(increase({{ $asked }}[5m])) or vector(0)) + (count({{ $asked }} unless {{ $asked }} offset 5m) or vector(0)) + (sum(vllm:num_requests_running{ {{- .workers }},model_name="{{ .name }}"}) or vector(0))
{{- end -}}
