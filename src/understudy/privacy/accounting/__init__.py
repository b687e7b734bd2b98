"""Accounting: what a list of events costs, by three accountants, and the noise that a budget asks for.

``pld`` (on dp_accounting) and ``fourier`` (our own, sharing no code with it) are numerical upper bounds within about
half a percent of the truth; ``renyi`` is a looser check on both. No torch here: a certificate can be verified without.
"""

from __future__ import annotations

from understudy.privacy.accounting.figures import calibrate, certified_epsilon, delta, describe, epsilon

__all__ = ["calibrate", "certified_epsilon", "delta", "describe", "epsilon"]
