"""What operators hold: metrics, health, alerts, a dashboard. Watches a run, changes nothing."""

from __future__ import annotations
