"""What operators look at: metrics, health, alerts, a dashboard, log lines; it changes no verdict.

In: outcomes and events of a run. Out: Prometheus text, answers to probes, posts to Alertmanager or
a webhook. Open `metrics` first; `health` says what a probe is told, `notify` who hears of alarms.
"""
