"""The site: members, items and servers, and what they do.

`Site` makes events as a pure function of a seed and the time, `encoding` turns them into bytes, `generator` sends
them.
"""

from penstock.activity.site.population import Population, Rhythm, Sizes
from penstock.activity.site.site import Site, Truth, rows_between

__all__ = ["Population", "Rhythm", "Site", "Sizes", "Truth", "rows_between"]
