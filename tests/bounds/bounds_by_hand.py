"""Slow, plain evaluations of γ and δ that share no code with the library."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr


def threshold_of(losses, noise, rate):
    """The noisy value above which one step's loss exceeds `losses`."""
    excess = np.maximum(
        losses + np.log1p(-(1 - rate) * np.exp(-np.maximum(losses, np.log1p(-rate) + 1e-15))), -1e3
    )
    return np.where(losses > np.log1p(-rate), 0.5 + noise**2 * (excess - np.log(rate)), -np.inf)


def tail(losses, noise, rate, *, present):
    values = threshold_of(losses, noise, rate)
    absent = ndtr(-values / noise)
    return (1 - rate) * absent + rate * ndtr((1 - values) / noise) if present else absent


def two_steps(baseline, first, second):
    """γ of two single steps (noise, rate) by integrating over the first and inverting in the threshold."""
    (noise, rate), (other_noise, other_rate) = first, second
    x = np.linspace(-10 * noise, 1 + 10 * noise, 40_001)
    losses = np.logaddexp(np.log1p(-rate), np.log(rate) + (x - 0.5) / noise**2)
    absent = np.exp(-0.5 * (x / noise) ** 2) / noise / np.sqrt(2 * np.pi) * (x[1] - x[0])
    present = absent * np.exp(losses)

    def exceeds(threshold, weights, *, with_target):
        return weights @ tail(threshold - losses, other_noise, other_rate, present=with_target)

    def gap(threshold):
        return np.log(max(exceeds(threshold, absent, with_target=False), 1e-300)) - np.log(baseline)

    lowest = np.log1p(-rate) + np.log1p(-other_rate)
    threshold = brentq(gap, lowest + 1e-9, 200.0, xtol=1e-14, rtol=1e-14)
    return exceeds(threshold, present, with_target=True)


def rounded_test(baseline, noise, rate, steps, *, points=2**18):
    """The power of a level-κ test on rounded losses: plain FFT, no tilt. Never above γ, and O(h²) below."""
    reach = np.array([-9.0 * noise, 1 + 9.0 * noise])
    low, high = np.logaddexp(np.log1p(-rate), np.log(rate) + (reach - 0.5) / noise**2)
    x = np.linspace(*reach, 20_001)
    losses = np.logaddexp(np.log1p(-rate), np.log(rate) + (x - 0.5) / noise**2)
    exponents = -0.5 * (x / noise) ** 2 + np.log((x[1] - x[0]) / noise / np.sqrt(2 * np.pi))
    weights, tilted = np.exp(exponents), np.exp(exponents + losses)
    mean, square = weights @ losses, weights @ losses**2
    mean_present, square_present = tilted @ losses, tilted @ losses**2
    spread = np.sqrt(steps * max(square - mean**2, square_present - mean_present**2))
    width = steps * (mean_present - mean) + 24 * spread + 8 * (high - low)
    spacing = width / points
    anchor = np.log1p(-rate)
    cells = int((high - anchor) / spacing) + 3
    edges = anchor + spacing * (np.arange(cells) - 0.5)
    laws = []
    for present in (False, True):
        tails = np.append(tail(edges, noise, rate, present=present), 0.0)
        tails[0] = 1.0
        mass = -np.diff(tails)
        folded = np.bincount(np.arange(cells) % points, mass, minlength=points)
        laws.append(np.fft.irfft(np.fft.rfft(folded) ** steps, n=points))
    start = steps * anchor
    first = int(np.floor((steps * mean - 12 * spread - 2 * (high - low) - start) / spacing))
    absent, present = (np.roll(law, -(max(first, 0) % points)) for law in laws)
    upper = np.cumsum(absent[::-1])[::-1]
    index = int(np.flatnonzero(upper >= baseline)[-1])
    above = upper[index + 1] if index + 1 < points else 0.0
    share = (baseline - above) / absent[index]
    return present[index + 1 :].sum() + share * present[index]


def mixture_ratio(x, noise, rate, records):
    """The likelihood ratio of one step for a person with several records, each sampled on its own."""
    weights = [math.comb(records, j) * rate**j * (1 - rate) ** (records - j) for j in range(records + 1)]
    return sum(weight * np.exp((j * x - j**2 / 2) / noise**2) for j, weight in enumerate(weights))
