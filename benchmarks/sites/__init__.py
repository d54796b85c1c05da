"""Sites drawn from a grammar by a seed: honest sections and traps in the manner of real software."""

from benchmarks.sites.draw import Site, site

__all__ = ["Site", "site"]
