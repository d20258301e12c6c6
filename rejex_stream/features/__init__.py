"""A reading with channels in, a row of numbers out: raw values, lags, differences, rolling, time.

In: readings of one sensor in their order. Out: a row as long as `FeatureSpec.names`, or nothing
while lags and windows fill. Open `spec` first; `columns` holds the small state of each column,
`preset` the sets that are ready made.
"""

from rejex_stream.features.preset import PresetName
from rejex_stream.features.spec import (
    Circle,
    Feature,
    FeatureKind,
    FeatureSpec,
    MissingChannelError,
    SensorFeatures,
)

__all__ = [
    "Circle", "Feature", "FeatureKind", "FeatureSpec", "MissingChannelError", "PresetName",
    "SensorFeatures",
]  # fmt: skip
