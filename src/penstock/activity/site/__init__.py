"""The site: members, items and servers, and what they do.

`Site` makes events, a pure function of a seed and the time; `encoding` makes them bytes; `generating` sends them.
"""

from penstock.activity.site.population import Population, Sizes
from penstock.activity.site.rhythm import Rhythm
from penstock.activity.site.site import Site, rows_between
from penstock.activity.site.truth import Truth

__all__ = ["Population", "Rhythm", "Site", "Sizes", "Truth", "rows_between"]
