{{/* A pod that the standard `restricted` admits. */}}
{{- define "gputide.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "gputide.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "gputide.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gputide.priority" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "gputide.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Words before the verb. */}}
{{- define "gputide.before" -}}
- --log-level
- {{ .Values.log.level }}
- --log-format
- {{ .Values.log.format }}
{{- end }}

{{/* Where a part on the data finds settings and data: the environment says it, so that `kubectl exec … gputide doctor`
     needs no options. A folder of the volume, since a new volume may hold a `lost+found`. */}}
{{- define "gputide.environment" -}}
- {name: GPUTIDE_CONFIG, value: /config/gputide.toml}
- {name: GPUTIDE_DATA_DIR, value: /data/gputide}
{{- end }}

{{- define "gputide.mounts" -}}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
- {name: config, mountPath: /config, readOnly: true}
{{- range .Values.secrets }}
- {name: {{ printf "secret-%s" .name }}, mountPath: {{ printf "/secrets/%s" .name }}, readOnly: true}
{{- end }}
{{- if include "gputide.usesFlink" . }}
- {name: flink, mountPath: /flink}
{{- end }}
{{- end }}

{{/* The volumes of these mounts: (list $ "name of the ConfigMap" "claim, or nothing for a folder of the pod"). */}}
{{- define "gputide.volumes" -}}
{{- $root := index . 0 -}}
- name: data
{{- if index . 2 }}
  persistentVolumeClaim: {claimName: {{ index . 2 }}}
{{- else }}
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: config
  configMap: {name: {{ index . 1 }}}
{{- range $root.Values.secrets }}
- name: {{ printf "secret-%s" .name }}
  secret: {secretName: {{ .secretName }}, defaultMode: 0440}
{{- end }}
{{- if include "gputide.usesFlink" $root }}
- name: flink
  persistentVolumeClaim: {claimName: {{ $root.Values.rollup.flink.stateClaim }}}
{{- end }}
{{- end }}

{{/* A volume that one node can mount: who needs it goes where it is mounted, the server too, which may start anew while
     another pod holds it; the first of them goes anywhere. (list $ affinity-of-the-user) */}}
{{- define "gputide.affinity" -}}
{{- $root := index . 0 -}}
{{- $own := deepCopy (default dict (index . 1)) -}}
{{- if and (eq $root.Values.data.accessMode "ReadWriteOnce") (not $own.podAffinity) }}
{{- $here := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (fromYaml (include "gputide.volumeLabel" $root))) }}
{{- $_ := set $own "podAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $here)) }}
{{- end }}
{{- with $own }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of a pod on a node: root, since what it reads is root's. (list privileged) */}}
{{- define "gputide.nodeSecurity" -}}
{{- if index . 0 }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
{{- end }}
readOnlyRootFilesystem: true
{{- if not (index . 0) }}
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}

{{- define "gputide.receiverMounts" -}}
- {name: senders, mountPath: /secrets/senders, readOnly: true}
{{- if .Values.receiver.tlsSecret }}
- {name: receiver-tls, mountPath: /secrets/receiver-tls, readOnly: true}
{{- end }}
{{- if .Values.receiver.clientCaSecret }}
- {name: receiver-clients, mountPath: /secrets/receiver-clients, readOnly: true}
{{- end }}
{{- if .Values.scraping.tokensSecret }}
- {name: scrapers, mountPath: /secrets/scrapers, readOnly: true}
{{- end }}
{{- end }}

{{- define "gputide.receiverVolumes" -}}
- name: senders
  secret: {secretName: {{ include "gputide.tokensSecret" . }}, defaultMode: 0440}
{{- with .Values.receiver.tlsSecret }}
- name: receiver-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.receiver.clientCaSecret }}
- name: receiver-clients
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Takes remote write. No new connection comes to a pod that ends; those under way are answered within 10 s. */}}
{{- define "gputide.receiverContainer" -}}
- name: receiver
  image: {{ include "gputide.image" (list . dict) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    {{- include "gputide.before" . | nindent 4 }}
    - run
    - receive
    - --listen
    - {{ printf "0.0.0.0:%v" .Values.receiver.port | quote }}
  env:
    {{- include "gputide.environment" . | nindent 4 }}
  ports:
    - {name: remote-write, containerPort: {{ .Values.receiver.port }}}
  readinessProbe:
    httpGet: {path: /-/ready, port: remote-write{{ if .Values.receiver.tlsSecret }}, scheme: HTTPS{{ end }}}
    periodSeconds: 5
  livenessProbe:
    httpGet: {path: /healthz, port: remote-write{{ if .Values.receiver.tlsSecret }}, scheme: HTTPS{{ end }}}
    initialDelaySeconds: 30
    periodSeconds: 20
    timeoutSeconds: 10
    failureThreshold: 6
  resources:
    {{- toYaml .Values.receiver.resources | nindent 4 }}
  securityContext:
    {{- include "gputide.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "gputide.mounts" . | nindent 4 }}
    {{- include "gputide.receiverMounts" . | nindent 4 }}
{{- end }}

{{/* The web app: (list $ app "container's name" resources). On loopback no probe reaches it; it ends where it can't go
     on. A kubelet shows no certificate: where one is asked for, it sees to the port alone. */}}
{{- define "gputide.dashboardContainer" -}}
{{- $root := index . 0 -}}
{{- $app := index . 1 -}}
- name: {{ index . 2 }}
  image: {{ include "gputide.image" (list $root dict) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    {{- include "gputide.before" $root | nindent 4 }}
    - serve
  env:
    {{- include "gputide.environment" $root | nindent 4 }}
  ports:
    - {name: web, containerPort: {{ $app.port }}}
    {{- if include "gputide.servesUsage" (list $root (index . 2)) }}
    - {name: usage, containerPort: {{ $root.Values.usageApi.port }}}
    {{- end }}
  {{- if ne $app.access "none" }}
  readinessProbe:
    {{- if $app.clientCaSecret }}
    tcpSocket: {port: web}
    {{- else }}
    httpGet: {path: /healthz, port: web{{ if $app.tlsSecret }}, scheme: HTTPS{{ end }}}
    {{- end }}
    periodSeconds: 10
    timeoutSeconds: 5
  {{- end }}
  resources:
    {{- toYaml (index . 3) | nindent 4 }}
  securityContext:
    {{- include "gputide.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    {{- include "gputide.mounts" $root | nindent 4 }}
    {{- if ne $app.access "none" }}
    - {name: rights, mountPath: /secrets/rights, readOnly: true}
    {{- if $app.tlsSecret }}
    - {name: web-tls, mountPath: /secrets/web-tls, readOnly: true}
    {{- end }}
    {{- if $app.clientCaSecret }}
    - {name: web-clients, mountPath: /secrets/web-clients, readOnly: true}
    {{- end }}
    {{- end }}
    {{- if include "gputide.servesUsage" (list $root (index . 2)) }}
    - {name: usage-tls, mountPath: /secrets/usage-tls, readOnly: true}
    - {name: front-proxy, mountPath: /secrets/front-proxy, readOnly: true}
    {{- end }}
{{- end }}

{{/* Whether a web app answers the API server too; the enforcer's console does not: (list $ "dashboard") */}}
{{- define "gputide.servesUsage" -}}
{{- if and (index . 0).Values.usageApi.enabled (eq (index . 1) "dashboard") }}yes{{ end }}
{{- end }}

{{- define "gputide.usageVolumes" -}}
{{- if .Values.usageApi.enabled }}
{{- $name := printf "%s-usage" (include "gputide.fullname" .) }}
- name: usage-tls
  secret: {secretName: {{ default (printf "%s-tls" $name) .Values.usageApi.tlsSecret }}, defaultMode: 0440}
- name: front-proxy
  configMap: {name: {{ $name }}-front-proxy}
{{- end }}
{{- end }}

{{/* What the API server's front proxy shows: its authority, and the names that its certificate may have, as a JSON
     list. */}}
{{- define "gputide.frontProxyCa" -}}
{{- $found := lookup "v1" "ConfigMap" "kube-system" "extension-apiserver-authentication" }}
{{- default (dig "data" "requestheader-client-ca-file" "" $found) .Values.usageApi.frontProxyCa }}
{{- end }}
{{- define "gputide.frontProxyNames" -}}
{{- $found := lookup "v1" "ConfigMap" "kube-system" "extension-apiserver-authentication" }}
{{- default (dig "data" "requestheader-allowed-names" "[]" $found | fromJsonArray) .Values.usageApi.frontProxyNames | toJson }}
{{- end }}

{{- define "gputide.rightsVolume" -}}
{{- if ne .access "none" }}
- name: rights
  secret: {secretName: {{ .rightsSecret }}, defaultMode: 0440}
{{- with .tlsSecret }}
- name: web-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .clientCaSecret }}
- name: web-clients
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{/* A container whose only port, if any, is that of its own metrics: (list $ "name" words resources). */}}
{{- define "gputide.workerContainer" -}}
{{- $root := index . 0 -}}
{{- $own := list $root (index . 1) -}}
- name: {{ index . 1 }}
  image: {{ include "gputide.image" (list $root dict) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    {{- include "gputide.before" $root | nindent 4 }}
    {{- include "gputide.ownWords" $own | nindent 4 }}
    {{- range index . 2 }}
    - {{ . | quote }}
    {{- end }}
  env:
    {{- include "gputide.environment" $root | nindent 4 }}
  {{- with include "gputide.ownPort" $own }}
  ports:
    {{- . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml (index . 3) | nindent 4 }}
  securityContext:
    {{- include "gputide.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    {{- include "gputide.mounts" $root | nindent 4 }}
    {{- include "gputide.ownMounts" $own | nindent 4 }}
{{- end }}

{{/* The pod of a job on the data: (list $ "part" words resources). Status 2 and 3 (wrong settings, not enough data) are
     not mended by trying again. */}}
{{- define "gputide.jobSpec" -}}
{{- $root := index . 0 -}}
backoffLimit: 3
ttlSecondsAfterFinished: 86400
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes: {containerName: {{ index . 1 }}, operator: In, values: [2, 3]}
template:
  metadata:
    labels:
      {{- include "gputide.labels" (list $root (index . 1)) | nindent 6 }}
      {{- include "gputide.volumeLabel" $root | nindent 6 }}
    {{- with $root.Values.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "gputide.fullname" $root }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    {{- include "gputide.pullSecrets" $root | nindent 4 }}
    {{- include "gputide.priority" $root | nindent 4 }}
    {{- include "gputide.placement" $root.Values.server | nindent 4 }}
    {{- include "gputide.affinity" (list $root dict) | nindent 4 }}
    securityContext:
      {{- include "gputide.podSecurity" $root | nindent 6 }}
    containers:
      {{- include "gputide.workerContainer" . | nindent 6 }}
    volumes:
      {{- include "gputide.volumes" (list $root (include "gputide.fullname" $root) (include "gputide.claim" $root)) | nindent 6 }}
{{- end }}

{{- define "gputide.cronJob" -}}
{{- $root := index . 0 -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "gputide.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "gputide.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  schedule: {{ index . 4 | quote }}
  timeZone: {{ $root.Values.cluster.timeZone }}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  successfulJobsHistoryLimit: 2
  failedJobsHistoryLimit: 2
  jobTemplate:
    metadata:
      labels:
        {{- include "gputide.labels" (list $root (index . 1)) | nindent 8 }}
    spec:
      {{- include "gputide.jobSpec" . | nindent 6 }}
{{- end }}

{{/* How a process shows metrics of itself: words, the port, and the files that guard it. (list $ "process") */}}
{{- define "gputide.ownWords" -}}
{{- with index (index . 0).Values.ownMetrics (index . 1) }}
- --set
- exporter.own_listen=0.0.0.0:{{ . }}
{{- end }}
{{- end }}

{{- define "gputide.ownPort" -}}
{{- $name := index . 1 -}}
{{- with index (index . 0).Values.ownMetrics $name }}
- {name: own-{{ $name }}, containerPort: {{ . }}}
{{- end }}
{{- end }}

{{- define "gputide.ownMounts" -}}
{{- if index (index . 0).Values.ownMetrics (index . 1) }}
{{- include "gputide.scrapeMounts" (index . 0) }}
{{- end }}
{{- end }}

{{/* How an exporter guards its port: words, mounts and volumes. */}}
{{- define "gputide.scrapeWords" -}}
{{- if .Values.scraping.tokensSecret }}
- --set
- exporter.scrape_tokens_file=/secrets/scrapers/tokens
{{- end }}
{{- if .Values.scraping.tlsSecret }}
- --set
- exporter.tls_certificate_file=/secrets/exporter-tls/tls.crt
- --set
- exporter.tls_key_file=/secrets/exporter-tls/tls.key
{{- end }}
{{- end }}

{{- define "gputide.scrapeMounts" -}}
{{- if .Values.scraping.tokensSecret }}
- {name: scrapers, mountPath: /secrets/scrapers, readOnly: true}
{{- end }}
{{- if .Values.scraping.tlsSecret }}
- {name: exporter-tls, mountPath: /secrets/exporter-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "gputide.scrapeVolumes" -}}
{{- with .Values.scraping.tokensSecret }}
- name: scrapers
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.scraping.tlsSecret }}
- name: exporter-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* (list $ "part" "namespace" classes) */}}
{{- define "gputide.criticalQuota" -}}
{{- $root := index . 0 }}
{{- $found := list }}
{{- range index . 3 }}{{ if hasPrefix "system-" . }}{{ $found = append $found . }}{{ end }}{{ end }}
{{- if $found }}
---
apiVersion: v1
kind: ResourceQuota
metadata:
  name: {{ include "gputide.fullname" $root }}-{{ index . 1 }}
  namespace: {{ index . 2 }}
  labels:
    {{- include "gputide.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  hard: {pods: "100000"}
  scopeSelector:
    matchExpressions:
      - {scopeName: PriorityClass, operator: In, values: [{{ uniq $found | join ", " }}]}
{{- end }}
{{- end }}

{{/* Whether a planner follows policies: it reads the volume that the receiver fills, and writes plans to the cluster. */}}
{{- define "gputide.followsPolicies" -}}
{{- if and .Values.enforcer.enabled .Values.enforcer.controller .Values.server.enabled .Values.recommend.enabled (eq .Values.source "receiver") }}true{{ end }}
{{- end }}
