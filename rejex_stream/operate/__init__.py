"""What operators look at: metrics, health, alerts, a dashboard, log lines; it changes no verdict.

In: outcomes and events of a run. Out: Prometheus text, answers to probes, posts to Alertmanager or
a webhook. Open `run_monitor` first; `run_metrics` counts, `incident_text` words, `alerts` sends.
"""
