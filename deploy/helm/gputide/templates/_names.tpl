{{- define "gputide.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Of the parts of this name the longest CronJob and label have room; a Service takes no dot and begins with a letter. */}}
{{- define "gputide.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name }}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name (include "gputide.name" .)) (contains (include "gputide.name" .) .Release.Name) }}
{{- end }}
{{- regexReplaceAll "-+$" (regexReplaceAll "^([0-9])" ($name | replace "." "-") "r${1}" | trunc 40) "" }}
{{- end }}

{{/* Labels of an object: (list $ "part"). */}}
{{- define "gputide.labels" -}}
{{- $root := index . 0 -}}
{{ include "gputide.selector" . }}
app.kubernetes.io/part-of: gputide
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What tells the pods of a part from all others: (list $ "part"). */}}
{{- define "gputide.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "gputide.fullname" $root }}-{{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- end }}

{{- define "gputide.nodesNamespace" -}}
{{ default (printf "%s-nodes" .Release.Namespace) .Values.nodes.namespace }}
{{- end }}

{{- define "gputide.claim" -}}
{{ default (printf "%s-data" (include "gputide.fullname" .)) .Values.data.existingClaim }}
{{- end }}

{{/* By this label those who mount the volume find each other. */}}
{{- define "gputide.volumeLabel" -}}
gputide.io/volume: {{ include "gputide.claim" . | trunc 63 | trimAll "-." | quote }}
{{- end }}

{{/* Address of a web app: (list $ app "part"); without one it answers on names of this machine alone. */}}
{{- define "gputide.publicUrl" -}}
{{- $root := index . 0 -}}
{{- $app := index . 1 -}}
{{- $ingress := default dict $app.ingress -}}
{{- if $app.publicUrl }}{{ $app.publicUrl }}
{{- else if and $ingress.enabled $ingress.host }}https://{{ $ingress.host }}
{{- else if and $app.tlsSecret (ne $app.access "none") }}https://{{ include "gputide.fullname" $root }}-{{ index . 2 }}.{{ $root.Release.Namespace }}.svc
{{- end }}
{{- end }}

{{- define "gputide.tokensSecret" -}}
{{ default (printf "%s-senders" (include "gputide.fullname" .)) .Values.receiver.tokensSecret }}
{{- end }}

{{/* Whether this release takes samples, and whether its receivers are a Deployment of their own. */}}
{{- define "gputide.receives" -}}
{{- if and .Values.receiver.enabled (eq .Values.source "receiver") }}true{{ end }}
{{- end }}
{{- define "gputide.receivesApart" -}}
{{- $bus := dig "bus" "kind" "file" .Values.settings -}}
{{- if and (include "gputide.receives" .) (eq $bus "kafka") }}true{{ end }}
{{- end }}
{{- define "gputide.rollsUp" -}}
{{- if and .Values.rollup.enabled .Values.server.enabled (eq .Values.source "receiver") }}true{{ end }}
{{- end }}
{{- define "gputide.usesFlink" -}}
{{- if and (eq .Values.rollup.engine "flink") .Values.rollup.flink.stateClaim }}true{{ end }}
{{- end }}

{{/* An image: (list $ image), where what the image leaves out is the chart's. */}}
{{- define "gputide.image" -}}
{{- $root := index . 0 -}}
{{- $own := index . 1 -}}
{{- $name := default $root.Values.image.repository $own.repository -}}
{{- $tag := default (default $root.Chart.AppVersion $root.Values.image.tag) $own.tag -}}
{{- $digest := $own.digest -}}
{{- if not $own.repository }}{{ $digest = default $root.Values.image.digest $own.digest }}{{ end -}}
{{- if $digest }}{{ $name }}@{{ $digest }}{{ else }}{{ $name }}:{{ $tag }}{{ end -}}
{{- end }}

{{/* Whether a kind of group gputide.io is this release's to make: (list $ "plural"). One that kubectl or another release has
     made is left to it; it stays when that release is removed, and helm takes over nothing from another namespace. */}}
{{- define "gputide.ownsKind" -}}
{{- $release := (index . 0).Release -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (printf "%s.gputide.io" (index . 1)) -}}
{{- $made := dig "metadata" "annotations" dict $there -}}
{{- if or (not $there) (and (eq (dig "meta.helm.sh/release-name" "" $made) $release.Name) (eq (dig "meta.helm.sh/release-namespace" "" $made) $release.Namespace)) }}true{{ end }}
{{- end }}

{{- define "gputide.makesKind" -}}
{{- if (index . 0).Values.enforcer.enabled }}{{ include "gputide.ownsKind" . }}{{ end }}
{{- end }}
