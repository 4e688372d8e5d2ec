"""The HTTP server: dashboard, API, webhooks and OTLP receiver."""
