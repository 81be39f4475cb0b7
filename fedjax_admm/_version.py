"""The version, for the package and for its build."""

__version__ = "0.2.0"
