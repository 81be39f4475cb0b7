"""The vocabulary of the package, and what every other part stands on."""
