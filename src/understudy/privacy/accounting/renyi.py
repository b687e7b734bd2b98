"""The sanity check: Renyi differential privacy, which is never below the numerical accountants.

Poisson-sampled and unsampled Gaussians and the conversion to epsilon come from ``dp_accounting``. Routed queries
follow Theorem A.1 of the GS-WGAN paper (Wang, Balle, Kasiviswanathan 2019, sampling one of ``subsets`` without
replacement), whose sum stands inside the logarithm, and are converted as there: epsilon = rdp + ln(1/delta)/(order-1).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from understudy.errors import InputError
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

Array = NDArray[np.float64]

ORDERS: tuple[float, ...] = (
    *(1 + step / 100 for step in range(2, 10, 2)),
    *(float(order) for order in rdp.DEFAULT_RDP_ORDERS),
)
_LARGEST_SUBSAMPLED_ORDER = 256


def epsilon(events: Sequence[Event], delta: float) -> float:
    """An upper bound on epsilon at ``delta``; inf where no order gives one."""
    if not events:
        return 0.0
    total = np.zeros(len(ORDERS))
    for event in events:
        total += _divergence(event)
    total[np.isnan(total)] = np.inf
    if any(isinstance(event.sampling, RoutedSampling) for event in events):
        return max(0.0, float(np.min(total + math.log(1 / delta) / (np.array(ORDERS) - 1))))
    if not np.isfinite(total).any():
        return math.inf
    return float(rdp.compute_epsilon(ORDERS, total, delta)[0])


def divergence(events: Sequence[Event], order: float) -> float:
    """The Renyi divergence of all events together at one of ``ORDERS``, in both directions; inf where there is none.

    At an order that was fixed beforehand it adds up over plans that are chosen adaptively (Feldman and Zrnic 2021).
    """
    place = int(np.argmin(np.abs(np.array(ORDERS) - order)))
    if not math.isclose(ORDERS[place], order, rel_tol=1e-12):
        raise InputError(f"order: {order:g} is not among those that are accounted; the nearest is {ORDERS[place]:g}")
    total = 0.0
    for event in events:
        total += float(_divergence(event)[place])
    return math.inf if math.isnan(total) else total


def converted(divergence: float, order: float, delta: float, floor: float = 0.0) -> float:
    """Epsilon at ``delta`` of a divergence at ``order`` (Canonne, Kamath, Steinke 2020)."""
    return max(floor, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def _divergence(event: Event) -> Array:
    """The Renyi divergence of the whole event at ``ORDERS``, with an allowance for rounding in each execution."""
    orders = np.array(ORDERS)
    multiplier, sampling = min(event.noise_multiplier, 1e9), event.sampling
    if multiplier < 1e-6:
        return np.full(len(ORDERS), np.inf)
    slack = 1e-15 * event.count / (orders - 1)
    if isinstance(sampling, NoSampling) or (isinstance(sampling, PoissonSampling) and sampling.rate == 1):
        return np.asarray(event.count * orders / 2 / multiplier / multiplier)
    if isinstance(sampling, PoissonSampling):
        return np.asarray(slack + event.count * np.maximum(0.0, _poisson(sampling.rate, multiplier)))
    if isinstance(sampling, RoutedSampling):
        return slack + event.count * _routed(max(1 / sampling.subsets, 1e-300), multiplier)
    if isinstance(sampling, RevealedRouting):
        rate, draws = 1 / sampling.subsets, event.count // sampling.rows
        return slack + draws * _revealed(rate, sampling.rows / multiplier / multiplier)
    raise InputError(f"sampling: {sampling!r} is unknown to the renyi accountant; an unknown event is never accounted")


def _poisson(rate: float, multiplier: float) -> Array:
    """One Poisson-sampled Gaussian; orders for which the library's series does not converge are passed over."""
    orders = np.array(ORDERS)
    usable = orders if rate <= 0.5 and multiplier <= 100 else orders[orders % 1 == 0]
    accountant = rdp.RdpAccountant(usable)
    with np.errstate(all="ignore"), _quiet():
        accountant.compose(PoissonSampledDpEvent(max(rate, 1e-300), GaussianDpEvent(multiplier)))
    finite = np.isfinite(accountant.rdp)
    moments = (accountant.rdp * (usable - 1))[finite]
    return _chords(np.append(1.0, usable[finite]), np.append(0.0, moments))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's warnings about single orders off the user's terminal."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _revealed(rate: float, squared_distance: float) -> Array:
    """One draw of ``rows`` queries, index known: ln(1 - rate + rate * exp(order * (order-1) * d^2 / 2))/(order - 1)."""
    orders = np.array(ORDERS)
    with np.errstate(divide="ignore"):
        stays, drawn = np.log1p(-rate), np.log(max(rate, 1e-300))
    return np.asarray(np.logaddexp(stays, drawn + orders * (orders - 1) * squared_distance / 2) / (orders - 1))


def _routed(rate: float, multiplier: float) -> Array:
    """One routed query, by Theorem A.1 at whole orders."""
    whole = np.arange(1.0, _LARGEST_SUBSAMPLED_ORDER + 1)
    return _chords(whole, np.array([0.0, *(_theorem_a1(int(order), rate, multiplier) for order in whole[1:])]))


def _chords(orders: Array, moments: Array) -> Array:
    """Divergences at ``ORDERS``, from (order-1) * divergence at some: convex, hence below its chords; inf beyond."""
    wanted = np.array(ORDERS)
    return np.where(wanted <= orders[-1], np.interp(wanted, orders, moments) / (wanted - 1), np.inf)


def _theorem_a1(order: int, rate: float, multiplier: float) -> float:
    """(order - 1) * divergence of one routed query; with Gaussian noise the divergence before sampling is j/(2 s^2)."""
    terms = np.arange(2, order + 1)
    divergence = terms / 2 / multiplier / multiplier
    logs = gammaln(order + 1) - gammaln(terms + 1) - gammaln(order - terms + 1) + terms * math.log(rate)
    logs += (terms - 1) * divergence + math.log(2)
    second = float(divergence[0])
    logs[0] += min(0.0, math.log(2) + math.log(-math.expm1(-second)))
    return float(np.logaddexp(0.0, logsumexp(logs)))
