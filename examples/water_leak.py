"""A water meter: call a leak a leak, and ask a person when it is too close to call.

    python examples/water_leak.py

The data is two months of real, hourly flow from the river package. The review budget is one hour a
day, and 50 hours more when something is wrong: that holds whatever the flow does.
"""

from datetime import UTC, datetime

from river.datasets import WaterFlow

from rejex_stream import Pipeline

pipeline = Pipeline(
    input={"channels": ["flow"], "time": "time", "time_unit": "iso8601", "fixed_sensor": "meter"},
    features={
        "columns": [  # the flow, how fast it changes, and when
            {"kind": "raw", "channel": "flow"},
            {"kind": "difference", "channel": "flow", "events": 1},
            {"kind": "hour_of_day"},
        ]
    },
    rejection={
        "contamination": 0.05,  # at most 5 % of the hours are expected to be wrong
        "window": 336,  # two weeks of hours
        "review_budget": {"reviews_per_day": 1, "events_per_day": 24, "burst": 50},
    },
    refit={"first_fit_events": 48, "refit_every_events": 336, "refit_lag_events": 4},
)
outcomes = pipeline.process({"time": x["Time"], "flow": flow} for x, flow in WaterFlow())

for incident in pipeline.incidents:
    since = datetime.fromtimestamp(incident.onset_ms / 1000, UTC)
    print(
        f"{since:%d %b %H:%M}  {incident.state:<6}  {incident.n_anomalies:3} anomalies and "
        f"{incident.n_rejected:2} rejected hours of {incident.n_events:3}"
    )

reasons = [outcome.verdict.reason for outcome in outcomes]  # None: the label was accepted
rejected = reasons.count("ambiguous")
ranked = rejected + reasons.count(None)
print(f"\n{rejected} of {ranked:,} hours went to review; the budget allows {ranked / 24 + 50:.0f}.")
