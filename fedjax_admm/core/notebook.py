"""How values show themselves in a notebook: a hook that `show` fills, so that no value needs to know it."""

from __future__ import annotations

import functools
from html import escape
from typing import Any


@functools.singledispatch
def html(value: Any) -> str:
    """What a value's `_repr_html_` returns; `html.register` adds a kind of values.

    Args:
        value: What a notebook is to show.

    Returns:
        HTML; before `show` is imported, which registers records and the other kinds, the value's representation.
    """
    return f"<pre>{escape(repr(value))}</pre>"
