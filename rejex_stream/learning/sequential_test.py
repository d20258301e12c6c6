r"""Who may speak, champion or challenger: an anytime-valid test of what their verdicts cost.

For event t let g_t be what the champion's verdict cost less what the challenger's did, in [-b, b].
Where both say the same g_t = 0, whatever the truth. Elsewhere a coin of known probability p_t >= p
that nobody can foresee decides whether somebody is asked; Y_t = g_t / p_t where the coin fell so,
else 0, so that the mean of Y_t given the past is g_t. For a bet λ in (0, p / b) the wealth

.. math:: W_t(λ) = \prod_{s \le t} (1 + λ Y_s) \quad\text{has}\quad
          W_t(λ) \le M_t(λ)\, e^{λ (g_1 + \dots + g_t)}

with M a nonnegative martingale that begins at 1, since 1 + λ g <= e^(λ g). So wherever the
challenger has not been cheaper in total, g_1 + ... + g_t <= 0, every W_t(λ) is below M_t(λ), and
by Ville's inequality the mean over fixed λ reaches 1/α at *any* such t with a probability of at
most α. Only the coins are random: the stream may drift, burst and know every earlier coin, and the
test may be looked at after every answer.

While the challenger speaks the same bets go against it, begun again whenever they are lost
(an e-CUSUM), and at 1/α the champion speaks again; of λ only that no bet may lose more than there
is matters, so against it the largest *gain* bounds it, which errors of answers do not stretch. The
k-th try to take over has α / (k (k + 1)),
so that all tries of a deployment together keep α, each about the time since it began.

Where answers err, by a share of at most ε whatever the truth is, g_t is booked as
:func:`error_adjusted_gains` says: then the mean of Y_t is g_t at most, and the proof
stands as it is.

References
----------
.. [1] J. Ville: Étude critique de la notion de collectif. 1939. The inequality.
.. [2] I. Waudby-Smith, A. Ramdas: Estimating means of bounded random variables by betting. Journal
   of the Royal Statistical Society B, 2024. Bets on bounded differences.
.. [3] J. Shin, A. Ramdas, A. Rinaldo: E-detectors. New England Journal of Statistics in Data
   Science, 2023. The CUSUM of e-values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rejex_stream.errors import ConfigError

__all__ = ["SequentialTest", "error_adjusted_gains", "max_gain_with_errors"]


def error_adjusted_gains(
    if_normal: float, if_anomalous: float, wrong: float
) -> tuple[float, float]:
    """Return the gains to book for either answer where answers are wrong now and then.

    Whichever the truth, and however often up to `wrong` its answers are wrong, the mean of what is
    booked is at most the true gain: with a the smaller gain and b the larger, a wrong answer turns
    a into b, and (a - wrong b) / (1 - wrong) makes up for it.
    """
    if if_normal < if_anomalous:
        return (if_normal - wrong * if_anomalous) / (1.0 - wrong), if_anomalous
    return if_normal, (if_anomalous - wrong * if_normal) / (1.0 - wrong)


def max_gain_with_errors(max_gain: float, wrong: float) -> float:
    """Return the largest gain that is booked where answers are wrong so often."""
    room = 1.0 + 1e-12 if wrong else 1.0  # for the rounding of the gain itself
    return max_gain * (1.0 + wrong) / (1.0 - wrong) * room


_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8])
"""Bets as shares of the largest one. Any fixed set is valid; this one loses a factor of 9."""


class SequentialTest:
    """Evidence from audited differences, and who speaks by it.

    Parameters
    ----------
    rate
        p, the least probability with which a difference is audited, in (0, 1].
    max_gain
        b, the largest difference of two verdicts' costs.
    alpha
        The probability that a challenger ever takes over while it has not been cheaper.
    max_gain_reverse
        The largest difference while the challenger speaks, where it is less than `max_gain`: the
        smaller it is, the sooner the champion speaks again.
    """

    def __init__(
        self,
        rate: float,
        max_gain: float = 1.0,
        alpha: float = 0.05,
        max_gain_reverse: float | None = None,
    ) -> None:
        if not 0.0 < rate <= 1.0 or not 0.0 < alpha < 1.0:
            raise ConfigError(
                f"rate is {rate}, alpha is {alpha}: expected probabilities above 0, alpha below 1"
            )
        max_gain_reverse = max_gain if max_gain_reverse is None else max_gain_reverse
        if not 0.0 < max_gain_reverse <= max_gain < math.inf:
            raise ConfigError(
                f"max_gain is {max_gain}, max_gain_reverse is {max_gain_reverse}: expected the "
                "largest difference of two costs, and no larger one while the challenger speaks"
            )
        self.rate, self.max_gain, self.max_gain_reverse, self._alpha = (
            rate,
            max_gain,
            max_gain_reverse,
            alpha,
        )
        self.challenger_speaks = False
        self.tries = 1
        self._log_wealth = np.zeros(len(_SHARES))

    @property
    def evidence(self) -> float:
        """Wealth of the bets that are on: for the challenger, or against it while it speaks."""
        return float(np.exp(self._log_wealth).mean())

    @property
    def limit(self) -> float:
        """At so much evidence the other speaks."""
        if self.challenger_speaks:
            return 1.0 / self._alpha
        return self.tries * (self.tries + 1) / self._alpha

    def update(self, gain: float, drawn: float) -> bool:
        """Weigh an audited difference, in order; return whether the active model changes.

        Parameters
        ----------
        gain
            What the champion's verdict cost less what the challenger's did; for want of an answer
            the least that it can be.
        drawn
            With which probability it was audited, at least the trial's `rate`.
        """
        max_gain = self.max_gain_reverse if self.challenger_speaks else self.max_gain
        if not -max_gain <= gain <= max_gain or not self.rate <= drawn <= 1.0:
            raise ConfigError(
                f"a difference of {gain} drawn with probability {drawn}: expected at most "
                f"{max_gain} and a probability from {self.rate} to 1"
            )
        stake = (gain / max_gain) * (self.rate / drawn)
        bets = _SHARES * (-stake if self.challenger_speaks else stake)
        self._log_wealth = self._log_wealth + np.log1p(bets)
        if self.challenger_speaks:
            self._log_wealth = np.maximum(self._log_wealth, 0.0)
        if self.evidence < self.limit:
            return False
        self.command(challenger_speaks=not self.challenger_speaks)
        return True

    def command(self, *, challenger_speaks: bool) -> None:
        """Let a person decide who speaks; the evidence begins again."""
        self.tries += not challenger_speaks
        self.challenger_speaks = challenger_speaks
        self._log_wealth = np.zeros(len(_SHARES))

    def state(self) -> list[Any]:
        """Return what has changed since it was made, as plain values."""
        return [self.challenger_speaks, self.tries, self._log_wealth.tolist()]

    def restore(self, state: Sequence[Any]) -> None:
        """Go on from :meth:`state`, in one that was made with equal arguments."""
        self.challenger_speaks, self.tries = bool(state[0]), int(state[1])
        self._log_wealth = np.array(state[2])
