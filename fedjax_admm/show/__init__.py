"""Notebook displays, pictures and reports; nothing here runs anything."""

from . import notebook  # which registers the displays

__all__ = ["notebook"]
