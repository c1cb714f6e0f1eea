{{- /* The Pod of a gateway, before what the values add to it. */ -}}
{{- define "dragoman.gatewayPod" -}}
metadata:
  annotations:
    # A changed gateway.yaml rolls the Pods; changed keys are read by the running ones.
    checksum/config: {{ include "dragoman.gatewayYaml" . | sha256sum }}
  labels:
    {{- include "dragoman.podLabels" (dict "root" . "component" "gateway" "extra" .Values.gateway.podLabels) | nindent 4 }}
spec:
  {{- include "dragoman.podSecurity" (dict "root" . "own" .Values.gateway "name" (printf "%s-gateway" (include "dragoman.fullname" .))) | nindent 2 }}
  terminationGracePeriodSeconds: {{ .Values.gateway.stopSeconds }}
  {{- if .Values.gateway.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "dragoman.selector" (dict "root" $ "component" "gateway") | nindent 10 }}
    {{- end }}
  {{- end }}
  containers:
    - name: gateway
      image: {{ include "dragoman.image" (dict "root" . "image" .Values.image) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [dragoman, serve, --config, /etc/dragoman/gateway.yaml]
      {{- with include "dragoman.gatewayEnv" . | trim }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      ports:
        - name: http
          containerPort: 8080
        - name: metrics
          containerPort: 9090
      # A node that is busy starts it late: until it has started, the other probes are not asked.
      startupProbe:
        httpGet:
          path: /livez
          port: metrics
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 90
      # Asked of the metrics port, where no client can be in the way.
      livenessProbe:
        httpGet:
          path: /livez
          port: metrics
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet:
          path: /readyz
          port: metrics
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      lifecycle:
        preStop:
          # Endpoints go first, so that a client told to end its connection does not come back here.
          sleep:
            seconds: {{ include "dragoman.preStopSeconds" . }}
      securityContext:
        {{- include "dragoman.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.gateway.resources | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: /etc/dragoman
          readOnly: true
        - name: tmp
          mountPath: /tmp
        - name: known
          mountPath: /var/lib/dragoman/known
        {{- if and .Values.gateway.batches.enabled (not .Values.gateway.batches.bucket.url) }}
        - name: batches
          mountPath: /var/lib/dragoman/batches
        {{- end }}
        {{- if .Values.gateway.promptLog.enabled }}
        - name: prompts
          mountPath: /var/lib/dragoman/prompts
        {{- end }}
        {{- range $folder, $secret := include "dragoman.gatewaySecrets" . | fromJson }}
        - name: {{ $folder | replace "/" "-" }}
          mountPath: /run/dragoman/{{ $folder }}
          readOnly: true
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "dragoman.fullname" . }}
    - name: tmp
      emptyDir: {}
    - name: known
      emptyDir: {}
    {{- with .Values.gateway.batches }}
    {{- if and .enabled (not .bucket.url) }}
    - name: batches
      persistentVolumeClaim:
        claimName: {{ default (printf "%s-batches" (include "dragoman.fullname" $)) .existingClaim }}
    {{- end }}
    {{- end }}
    {{- with .Values.gateway.promptLog }}
    {{- if .enabled }}
    - name: prompts
      {{- if .existingClaim }}
      persistentVolumeClaim:
        claimName: {{ .existingClaim }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ .size }}
      {{- end }}
    {{- end }}
    {{- end }}
    {{- range $folder, $secret := include "dragoman.gatewaySecrets" . | fromJson }}
    - name: {{ $folder | replace "/" "-" }}
      secret:
        secretName: {{ $secret }}
    {{- end }}
{{- end -}}
