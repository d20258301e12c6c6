"""In a notebook: a scikit-learn detector with a third answer, and what it costs to have it.

python examples/batch_facade.py
"""

import numpy as np

from rejex_stream.facade import REJECTED, RejectingDetector
from rejex_stream.rejection.bounds import exact_rate_bound, expected_rejection_rate

rng = np.random.default_rng(0)


def readings(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw n points around the origin, 5 % of them spread out; returns them with their labels."""
    wrong = rng.random(n) < 0.05
    return rng.normal(size=(n, 2)) * np.where(wrong, 4.0, 1.0)[:, None], wrong


X_train, _ = readings(2_000)
X_new, is_wrong = readings(2_000)

for tolerance in (4, 8, 32):
    model = RejectingDetector("KNN", contamination=0.05, tolerance=tolerance).fit(X_train)
    labels = model.predict(X_new)  # 0 normal, 1 anomaly, -2 rejected: PyOD's codes
    accepted = labels != REJECTED
    errors = np.mean((labels == 1)[accepted] != is_wrong[accepted])
    print(
        f"T = {tolerance:2}: {np.mean(~accepted):5.1%} rejected "
        f"(expected {expected_rejection_rate(model.band_):.1%}, "
        f"bound {exact_rate_bound(model.band_):.1%}), "
        f"errors among the accepted {errors:.2%}"
    )

print("\nThe five events it is least sure about:")
confidence = model.confidence(X_new)
for i in np.argsort(confidence)[:5]:
    print(f"  {X_new[i].round(2)}  confidence {confidence[i]:.2f}")
