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

{{/* A kind of policies: of a namespace, or of the cluster. */}}
{{- define "gputide.policyKind" }}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {{ .plural }}.gputide.io
  labels:
    {{- include "gputide.labels" (list .root "cluster-exporter") | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  group: gputide.io
  scope: {{ .scope }}
  names: {kind: {{ .kind }}, listKind: {{ .kind }}List, plural: {{ .plural }}, singular: {{ .singular }}, categories: [gputide]}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      subresources: {status: {}}
      additionalPrinterColumns:
        - {name: Opt-Out, type: boolean, jsonPath: .spec.optOut}
        - {name: Latency-Critical, type: boolean, jsonPath: .spec.latencyCritical}
        - {name: Warm, type: integer, jsonPath: .spec.minReplicasWarm, description: Replicas that are kept warm.}
        - {name: Isolation, type: string, jsonPath: .spec.isolation}
        - {name: Workloads, type: integer, jsonPath: .status.workloads, description: Workloads that it speaks of.}
        - {name: Conflict, type: string, jsonPath: '.status.conditions[?(@.type=="Conflict")].status'}
        - {name: Planned, type: string, jsonPath: '.status.conditions[?(@.type=="Planned")].status'}
        - {name: Plan, type: string, jsonPath: .status.plan, priority: 1}
        - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          description: >-
            {{ .says }} Field by field the most specific policy decides: one with a selector before one of its
            namespace; of two of one level the most careful counts.
          properties:
            spec:
              type: object
              x-kubernetes-validations:
                - rule: "has(self.optOut) || has(self.latencyCritical) || has(self.minReplicasWarm) || has(self.isolation)"
                  message: a policy asks for one thing at least
              properties:
                {{- if eq .scope "Namespaced" }}
                selector:
                  type: object
                  description: Pods that it speaks of, by their labels; all of the namespace where it is absent.
                  properties:
                    matchLabels:
                      type: object
                      maxProperties: 32
                      additionalProperties: {type: string, maxLength: 63}
                    matchExpressions:
                      type: array
                      maxItems: 32
                      items:
                        type: object
                        required: [key, operator]
                        properties:
                          key: {type: string, maxLength: 317}
                          operator: {type: string, enum: [In, NotIn, Exists, DoesNotExist]}
                          values: {type: array, maxItems: 128, items: {type: string, maxLength: 63}}
                {{- end }}
                optOut: {type: boolean, description: Leave the pods alone.}
                latencyCritical: {type: boolean, description: They answer people and may not be slowed or stopped.}
                minReplicasWarm: {type: integer, minimum: 0, maximum: 1000000, description: Replicas that never leave.}
                isolation:
                  type: string
                  enum: [soft, hard]
                  description: With `hard` they share a card with nobody who is not of their namespace and asks the same.
            status:
              type: object
              description: What became of it; gputide writes it.
              properties:
                observedGeneration: {type: integer, format: int64}
                workloads: {type: integer, description: Workloads with cards that it speaks of.}
                plan: {type: string, maxLength: 253, description: A GpuPlan that follows it as it is.}
                inForce:
                  type: array
                  description: Its fields that decide, and for how many workloads.
                  items:
                    type: object
                    required: [field, value, workloads]
                    properties:
                      field: {type: string}
                      value: {type: string}
                      workloads: {type: integer}
                conditions:
                  type: array
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [type]
                  items:
                    type: object
                    required: [type, status, reason, message, lastTransitionTime]
                    properties:
                      type: {type: string, enum: [Accepted, Conflict, Overruled, Planned]}
                      status: {type: string, enum: ["True", "False", Unknown]}
                      reason: {type: string}
                      message: {type: string}
                      observedGeneration: {type: integer, format: int64}
                      lastTransitionTime: {type: string, format: date-time}
{{- end }}
