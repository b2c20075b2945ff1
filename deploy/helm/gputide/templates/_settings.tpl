{{/* The settings as TOML: what the chart knows, and over it what the user says. (list $ "part"): the enforcer's parts
     may change the cluster and have a web app of their own. */}}
{{- define "gputide.settings" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $found := dict
  "cluster" (dict "name" $values.cluster.name "time_zone" $values.cluster.timeZone)
  "enforcer" (dict "namespace" $root.Release.Namespace)
  "provenance" (dict "own_namespaces" (uniq (list $root.Release.Namespace (include "gputide.nodesNamespace" $root))))
  "relief" (dict "agents" (list (printf "%s://%s-agent.%s.svc:%v" (ternary "http" "https" (empty $values.agent.tlsSecret)) (include "gputide.fullname" $root) (include "gputide.nodesNamespace" $root) $values.agent.port)))
-}}
{{- $app := $values.dashboard -}}
{{- if eq (index . 1) "enforcer" }}
{{- $app = $values.enforcer.console }}
{{- $_ := set $found "enforcer" (dict "namespace" $root.Release.Namespace "cluster" "kubernetes" "backend" $values.enforcer.backend) }}
{{- end }}
{{- $page := dict "port" (int $app.port) }}
{{- if ne $app.access "none" }}
{{- $_ := set $page "access" $app.access }}
{{- $_ := set $page "host" "0.0.0.0" }}
{{- $_ := set $page "rights_file" "/secrets/rights/rights.toml" }}
{{- if $app.tlsSecret }}
{{- $_ := set $page "tls_certificate_file" "/secrets/web-tls/tls.crt" }}
{{- $_ := set $page "tls_key_file" "/secrets/web-tls/tls.key" }}
{{- end }}
{{- if $app.clientCaSecret }}
{{- $_ := set $page "client_ca_file" "/secrets/web-clients/ca.crt" }}
{{- end }}
{{- end }}
{{- $url := include "gputide.publicUrl" (list $root $app (ternary "console" "dashboard" (eq (index . 1) "enforcer"))) }}
{{- if $url }}
{{- $_ := set $page "public_url" $url }}
{{- if ne (index . 1) "enforcer" }}
{{- $_ := set $found "notify" (dict "base_url" $url) }}
{{- end }}
{{- end }}
{{- $_ := set $found "dashboard" $page }}
{{- if and $values.usageApi.enabled (ne (index . 1) "enforcer") }}
{{- $_ := set $found "usage_api" (dict "listen" (printf "0.0.0.0:%v" $values.usageApi.port) "tls_certificate_file" "/secrets/usage-tls/tls.crt" "tls_key_file" "/secrets/usage-tls/tls.key" "client_ca_file" "/secrets/front-proxy/ca.crt" "front_proxy_names" (include "gputide.frontProxyNames" $root | fromJsonArray)) }}
{{- end }}
{{- if include "gputide.receives" $root }}
{{- $receiver := dict "tokens_file" "/secrets/senders/tokens" }}
{{- if $values.receiver.tlsSecret }}
{{- $_ := set $receiver "tls_certificate_file" "/secrets/receiver-tls/tls.crt" }}
{{- $_ := set $receiver "tls_key_file" "/secrets/receiver-tls/tls.key" }}
{{- end }}
{{- if $values.receiver.clientCaSecret }}
{{- $_ := set $receiver "client_ca_file" "/secrets/receiver-clients/ca.crt" }}
{{- end }}
{{- if $values.scraping.tokensSecret }}
{{- $_ := set $receiver "scrape_tokens_file" "/secrets/scrapers/tokens" }}
{{- end }}
{{- $_ := set $found "receiver" $receiver }}
{{- end }}
{{- $exporter := dict }}
{{- if $values.scraping.tokensSecret }}
{{- $_ := set $exporter "scrape_tokens_file" "/secrets/scrapers/tokens" }}
{{- end }}
{{- if $values.scraping.tlsSecret }}
{{- $_ := set $exporter "tls_certificate_file" "/secrets/exporter-tls/tls.crt" }}
{{- $_ := set $exporter "tls_key_file" "/secrets/exporter-tls/tls.key" }}
{{- end }}
{{- if $exporter }}{{ $_ := set $found "exporter" $exporter }}{{ end }}
{{- if eq $values.source "scan" }}
{{- $_ := set $found "scan" (dict "url" $values.scan.url "since_seconds" $values.scan.since) }}
{{- end }}
{{- with $values.telemetry.endpoint }}
{{- $_ := set $found "telemetry" (dict "endpoint" .) }}
{{- end }}
{{- if include "gputide.usesFlink" $root }}
{{- $flink := $values.rollup.flink }}
{{- $_ := set $found "flink" (dict "home" $flink.home "jars" $flink.jars "state_folder" "/flink/state") }}
{{- $rest := default (ternary (printf "http://%s-flink-rest:8081" (include "gputide.fullname" $root)) "" $flink.deployment.enabled) $flink.rest }}
{{- if $rest }}{{ $_ := set $found.flink "rest" $rest }}{{ end }}
{{- end }}
{{- mergeOverwrite $found (deepCopy $values.settings) | toToml }}
{{- end }}

{{/* Settings by dotted names as words of a command line: --set a.b=c. Helm reads every number as a float, and would show
     a million as 1e+06. */}}
{{- define "gputide.setWords" -}}
{{- range $name, $value := . }}
- --set
{{- if kindIs "float64" $value }}{{ if eq $value (floor $value) }}{{ $value = int64 $value }}{{ end }}{{ end }}
- {{ printf "%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
