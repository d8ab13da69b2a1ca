"""Degree and threshold of a neighbour graph, from what it must withstand (Bell et al. 2020, sections 3 and 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

SECURITY_BITS = 40
"""A round's graph protects no client with a chance of at most 2^-40."""

FAILURE_BITS = 20
"""A round with the stated share of drop-outs is given up because of its graph with a chance of at most 2^-20."""

SPARSE_FROM = 128
"""Clients from which on `auto` takes a sparse graph: fewer mask in pairs in less than a second per 100,000 weights."""

MOST_NEIGHBOURS = 1022
"""Larger degrees are not tried."""

Neighbours = Literal["auto", "all"] | int
"""`auto`: all other clients below SPARSE_FROM clients, and the fewest that suffice from there on."""


@dataclass(frozen=True)
class GraphParameters:
    """A circulant graph on a ring of clients in random order: each is joined to `degree` / 2 clients on either side."""

    degree: int  # neighbours of a client, even
    threshold: int  # shares of a client and its neighbours that restore one of its secrets
    gap: int  # most drop-outs among degree / 2 clients that follow each other on the ring


@dataclass(frozen=True)
class GraphSettings:
    """What the graph of a round is to withstand."""

    neighbours: Neighbours = "auto"  # of a client; a number that does not suffice is raised
    dropouts: float = 0.05  # share of a round's clients that may drop out, in [0, 1)
    colluders: float = 0.1  # share of a round's clients that help the server, in [0, 1)

    def parameters(self, clients: int) -> GraphParameters | None:
        """A graph of so many clients, whatever their number; None where only a complete one withstands as much."""
        found = smallest(clients, self.dropouts, self.colluders)
        if found is None or isinstance(self.neighbours, str) or self.neighbours <= found.degree:
            return found
        larger = min(self.neighbours + self.neighbours % 2, clients - 1)
        return sufficient(clients, larger - larger % 2, self.dropouts, self.colluders) or found

    def sparse(self, clients: int) -> GraphParameters | None:
        """The graph of a round of so many clients; None where all pairs mask."""
        if self.neighbours == "all" or (self.neighbours == "auto" and clients < SPARSE_FROM):
            return None
        return self.parameters(clients)


def counted_up(share: float, clients: int) -> int:
    """A share of clients as a number of clients, rounded up."""
    return math.ceil(share * clients - 1e-9)


@lru_cache(maxsize=256)
def smallest(clients: int, dropouts: float, colluders: float) -> GraphParameters | None:
    """The graph of a smallest even degree that suffices, by bisection; None where none below a complete graph does."""
    low, high = (
        2,
        min(2 * ((clients - 2) // 2), MOST_NEIGHBOURS),
    )  # in steps of two: no degree of at most `low` is taken, `high` may be
    if high <= low or sufficient(clients, high, dropouts, colluders) is None:
        return None
    while high - low > 2:
        middle = (low + high) // 4 * 2
        low, high = (low, middle) if sufficient(clients, middle, dropouts, colluders) else (middle, high)
    return sufficient(clients, high, dropouts, colluders)


@lru_cache(maxsize=1024)
def sufficient(clients: int, degree: int, dropouts: float, colluders: float) -> GraphParameters | None:
    """The parameters of a graph of this degree; None where no threshold or no gap meets the conditions.

    Tails of hypergeometric distributions are exact; chances for single clients are added up over all clients. For a
    client with `c` colluders among its `degree` neighbours and a threshold `t` of the `degree` + 1 holders of its
    shares (Bell et al. 2020, definition 3.3, with the server of section 4):

    - the server learns not both secrets, whatever it says about drop-outs: 2 t > degree + 1 + c (chance 2^-40);
    - its secrets can be restored: at least `t` neighbours stay (chance 2^-20);
    - clients that stay and do not collude are connected: no degree / 2 that follow each other on the ring all collude
      or drop out. The server chooses who drops out after it knows the graph, so clients refuse lists with more than
      `gap` drop-outs there (chance 2^-20 without a lie), and colluders with them are fewer than degree / 2 (2^-40).
    """
    from scipy.stats import hypergeom  # slow to import, and only needed for sparse graphs

    lost, against, half = counted_up(dropouts, clients), counted_up(colluders, clients), degree // 2
    secure, works = 2.0**-SECURITY_BITS / clients, 2.0**-FAILURE_BITS / clients
    thresholds, gaps = np.arange(half + 1, degree + 1), np.arange(half)
    hidden = hypergeom.sf(2 * thresholds - degree - 2, clients - 1, against, degree) <= secure
    restored = hypergeom.cdf(thresholds - 1, clients - 1, clients - 1 - lost, degree) <= works
    joined = hypergeom.sf(half - gaps - 1, clients, against, half) <= secure
    accepted = hypergeom.sf(gaps, clients, lost, half) <= works
    fitting, narrow = thresholds[hidden & restored], gaps[joined & accepted]
    if not len(fitting) or not len(narrow):
        return None
    return GraphParameters(degree, int(fitting[-1]), int(narrow[0]))
