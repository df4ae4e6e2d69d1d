"""Floating-point errors of certified numbers: the one place where the slack is derived.

u = 2⁻⁵³ is the unit roundoff; every elementary operation is right to a factor 1 ± u. Above that:

- *Special functions.* SciPy's log_ndtr, ndtri_exp, erfcx, erf and ndtr are right to a few u, in the argument and in
  the value: `FUNCTION` = 64·u is several times their measured error against mpmath over the arguments
  used here (`tests/bounds/test_closed_forms.py` measures it). An error in the argument is multiplied by the
  function's derivative, and added where it is used.
- *Exponents.* exp(a) of a sum a of terms of size Σ|aᵢ| is off by a factor exp(u·(n + 1)·Σ|aᵢ|): `exponent_slack`,
  for up to 16 terms.
- *Sums* of n non-negative terms are off by a factor 1 ± (n − 1)·u, however they are ordered.
- *Differences* A − B keep the *absolute* errors of both: A·e − never a factor of A − B. Where A and B nearly
  cancel, another form without the cancellation is used beside it, and the better of the two valid numbers is taken.
- *FFT* of n points: the forward and backward transforms of a vector of 1-norm 1 are off by at most (4·log₂n + 16)·u
  at each point in the sup norm (Higham 2002, Theorem 24.2, has about 4.5·u·log₂n in the 2-norm; measured errors are
  ten times smaller).
- *A power* φ^T of a coefficient |φ| ≤ 1 that is off by e is off by T·(|φ| + e)^(T−1)·e.

It is not interval arithmetic: the library functions' own errors are measured and not proven.
"""

from __future__ import annotations

import math

import numpy as np

UNIT = float(np.finfo(np.float64).eps) / 2
FUNCTION = 64 * UNIT  # relative, of a special function
_TERMS = 16  # the most terms of an exponent


def exponent_slack(*terms: float) -> float:
    """How far the exponential of a sum of such terms may be off, as a logarithm.

    >>> exponent_slack(0.0, 100.0) < 3e-13
    True
    """
    return _TERMS * UNIT * (1 + math.fsum(abs(term) for term in terms))


def transform_error(size: int) -> float:
    """The error of one coefficient of the FFT of a law on this many points."""
    return (4 * math.log2(size) + 16) * UNIT


def rounded_up(share: float) -> float:
    """A probability that is certainly not below a computed one, even if that underflowed."""
    return min(math.nextafter(share * (1 + 4 * UNIT), 1.0), 1.0)
