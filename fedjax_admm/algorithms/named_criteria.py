"""Criteria in words, as a command line gives them.

fixed                        every solve does its maximum of epochs
exact, epoch_mean, verified  the paper's relative criterion (3.7) with this residual and the example's c; with "-client"
                             after it, relative to the client's own residual instead of the one at z^k
NAME(NUMBER, ...)            a function of `criteria`, such as sampling_noise(1), decaying_squared_tolerance(9,0.95) or
                             relative_residual(sigma=0.5), FedProx's gamma; a word after the numbers is a residual
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from ..core import checks
from . import criteria

FIXED = "fixed"
RELATIVE = {
    residual + ending: (residual, reference)
    for ending, reference in (("", "server"), ("-client", "client"))
    for residual in criteria.RESIDUALS
}
MAKERS = {  # a new one is among them
    name: make
    for name in criteria.__all__
    if inspect.isfunction(make := getattr(criteria, name)) and name != "run_to_maximum"
}
NAMES = (FIXED, *RELATIVE, *MAKERS)


def named(text: str, c: Any) -> Any:
    """The criterion that `text` says; `c` is the modulus of strong convexity for the relative ones.

    >>> named("epoch_mean-client", c=0.01)
    RelativeResidual(c=0.01, fixed_sigma=None, sigma_factor=0.999, floor=0.0, reference='client', residual='epoch_mean')
    >>> named("sampling_noise(0.5, exact)", c=0.01)
    SamplingNoise(factor=0.5, residual='exact')
    """
    name, bracket, inside = text.strip().partition("(")
    checks.choice("criterion", name.strip(), NAMES)
    if name == FIXED and not bracket:
        return criteria.run_to_maximum()
    if name in RELATIVE and not bracket:
        residual, reference = RELATIVE[name]
        return criteria.relative_residual(c=c, residual=residual, reference=reference)
    make = MAKERS.get(name)
    if make is None or (bracket and not inside.endswith(")")):
        raise ValueError(f"criterion must be a word, or NAME(NUMBER, ...), got {text!r}")
    words = [word.strip() for word in inside.removesuffix(")").split(",") if word.strip()]
    numbers = [_number(word) for word in words if "=" not in word]
    options = {name.strip(): _number(item) for name, sign, item in (word.partition("=") for word in words) if sign}
    if numbers and isinstance(numbers[-1], str):
        options["residual"] = numbers.pop()
    try:
        call = inspect.signature(make).bind(*numbers, **options)
    except TypeError as error:
        raise ValueError(
            f"criterion {text!r}: {error}; it takes {', '.join(inspect.signature(make).parameters)}"
        ) from None
    return make(*call.args, **call.kwargs)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.strip()


def split(text: str) -> list[str]:
    """Several of them, with commas between them.

    >>> split("fixed, decaying_squared_tolerance(4,0.5), exact")
    ['fixed', 'decaying_squared_tolerance(4,0.5)', 'exact']
    """
    return [word.strip() for word in re.split(r",(?![^(]*\))", text) if word.strip()]
