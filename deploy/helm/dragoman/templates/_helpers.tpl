{{/* Metadata after the name. Names are the same in every release, as alerts, dashboards and autoscalers select them. */}}
{{- define "dragoman.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
  app.kubernetes.io/instance: {{ .Release.Name }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/part-of: dragoman
  app.kubernetes.io/name: dragoman
{{- end }}

{{/* The settings file; without authentication it names no callers file. */}}
{{- define "dragoman.settings" -}}
{{- $file := .Files.Get "files/service.toml" -}}
{{- if .Values.access.allowUnauthenticated }}{{ omit (fromToml $file) "access" | toToml }}{{ else }}{{ $file }}{{ end }}
{{- end }}

{{- define "dragoman.settingsName" -}}
dragoman-settings-{{ include "dragoman.settings" . | sha256sum | trunc 10 }}
{{- end }}

{{/* Name of the volume of an entry of `models`. */}}
{{- define "dragoman.modelVolume" -}}
models{{ with .name }}-{{ . | lower | replace "_" "-" | replace "." "-" }}{{ end }}
{{- end }}

{{/* Variables of the server by name, each with `value` or `valueFrom`; the value `settings` overrides the others. */}}
{{- define "dragoman.environment" -}}
{{- $all := dict }}
{{- if .Values.models }}
{{- $_ := set $all "DRAGOMAN_MODELS__DIRECTORY" (dict "value" "/models") }}
{{- end }}
{{- if .Values.gpu.enabled }}
{{- $_ := set $all "DRAGOMAN_RUNTIME__DEVICE" (dict "value" "cuda") }}
{{- $_ := set $all "CUDA_CACHE_PATH" (dict "value" "/tmp/cuda") }}
{{- end }}
{{- if .Values.access.allowUnauthenticated }}
{{- $_ := set $all "DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED" (dict "value" "true") }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- $_ := set $all "DRAGOMAN_HTTP__PUBLIC_URL" (dict "value" (printf "https://%s" (first .Values.gateway.httpHostnames))) }}
{{- end }}
{{- if .Values.tls.existingSecret }}
{{- $_ := set $all "DRAGOMAN_TLS__CERTIFICATE_FILE" (dict "value" "/etc/dragoman/tls/tls.crt") }}
{{- $_ := set $all "DRAGOMAN_TLS__PRIVATE_KEY_FILE" (dict "value" "/etc/dragoman/tls/tls.key") }}
{{- $_ := set $all "DRAGOMAN_ACCESS__ALLOW_PLAINTEXT_KEYS" (dict "value" "false") }}
{{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}
{{- $headers := dict "name" .headersSecret "key" "headers" "optional" true }}
{{- $_ := set $all "DRAGOMAN_TRACING__ENDPOINT" (dict "value" .endpoint) }}
{{- $_ := set $all "OTEL_EXPORTER_OTLP_HEADERS" (dict "valueFrom" (dict "secretKeyRef" $headers)) }}
{{- end }}
{{- end }}
{{- range $section, $settings := .Values.settings }}
{{- range $name, $value := $settings }}
{{- $text := $value }}
{{- if kindIs "slice" $value }}{{ $text = join "," $value }}{{ else if not (kindIs "string" $value) }}{{ $text = toJson $value }}{{ end }}
{{- $_ := set $all (printf "DRAGOMAN_%s__%s" (upper $section) (upper $name)) (dict "value" $text) }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{/* A null in the values removes the user, the group or the group of volumes. */}}
{{- define "dragoman.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- with .Values.podSecurityContext }}
{{ toYaml . }}
{{- end }}
{{- end }}
