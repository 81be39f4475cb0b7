"""Notebook displays, pictures and reports; nothing here runs anything."""
