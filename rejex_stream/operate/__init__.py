"""What operators look at: metrics, health, alerts, a dashboard, log lines; it changes no verdict.

In: outcomes and events of a run. Out: Prometheus text, answers to probes, posts to Alertmanager or
a webhook. Open `watch` first; `run_metrics` counts, `alerts` says what is posted and posts it.
"""
