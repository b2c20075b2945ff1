"""Grafana's dashboards and Prometheus' rules: what `gputide grafana export` hands to people who have both."""
