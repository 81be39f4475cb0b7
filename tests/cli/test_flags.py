"""Flags from functions: their help is what the docstrings say, and an argument of which they say nothing is refused."""

from __future__ import annotations

import dataclasses

import pytest

from fedjax_admm.cli.flags import Flags


def fit(*, seed: int = 0, rate: float = 0.1):
    """Fits.

    rate: this is not in the section of arguments.

    Args:
        seed: Where the draws
            begin.
    """


def refit(*, rate: float = 0.1, seed: int = 1):
    """Fits again.

    Args:
        rate: How fast.
        seed: Another text.
    """


@dataclasses.dataclass
class Fit:
    """A fit.

    Attributes:
        seed: Where the draws begin.
    """

    seed: int = 0


def helps(flags):
    return {parameter.name: parameter.annotation.__metadata__[0].help for parameter in flags.parameters()}


def test_an_argument_without_help_is_refused():
    with pytest.raises(ValueError, match=r'fit has no help for rate: add it to "Args:"'):
        Flags([fit], "Fit")


def test_an_argument_that_is_no_flag_needs_no_help():
    assert helps(Flags([fit], "Fit", renamed={"rate": None})) == {"seed": "Where the draws begin."}


def test_the_first_function_that_documents_an_argument_gives_its_help():
    assert helps(Flags([fit, refit], "Fit")) == {"seed": "Where the draws begin.", "rate": "How fast."}


def test_a_record_documents_its_fields():
    assert helps(Flags([Fit], "Fit")) == {"seed": "Where the draws begin."}
