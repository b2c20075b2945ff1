"""Grafana's dashboards and Prometheus' rules: what `gputide admin grafana export` hands to people who have both."""
