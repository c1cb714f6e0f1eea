"""The Grafana dashboards of the chart. Each has a module that describes it; `grafana` writes Grafana's JSON."""
