"""The Grafana dashboards of the chart: a module each says what one shows, `grafana` writes Grafana's JSON."""
