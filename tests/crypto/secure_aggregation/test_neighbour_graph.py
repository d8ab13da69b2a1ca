"""Rounds on a neighbour graph: exact sums with drop-outs, and what a server with colluding neighbours learns."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from masking_kit import NARROW, Federation, plain_sum
from scipy.stats import chisquare

from app.crypto.contributors import Contributors
from app.crypto.secure_aggregation.graph import NeighbourGraph, Ring
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.masks import PairwiseKeys, pairwise_mask
from app.crypto.secure_aggregation.parameters import GraphSettings
from app.crypto.secure_aggregation.secret_sharing import AbortedRoundError, SecretKind, join
from app.crypto.secure_aggregation.streams import add_stream

CLIENTS = range(24)
PEOPLE = Federation(CLIENTS)
LENGTH = 4096
SETTINGS = GraphSettings(2, 0.1, 0.1)
EVERYTHING = np.arange(LENGTH)


def laid_out(positions, randomness=bytes(32)):
    """A layout with the graph of these positions."""
    graph = NeighbourGraph.of(Contributors.of(LENGTH, positions), replace(SETTINGS, neighbours=4), randomness)
    return VectorLayout(LENGTH, NARROW, positions, 16, graph)


LAYOUT = laid_out(dict.fromkeys(CLIENTS, EVERYTHING))
RING = LAYOUT.graph.shares
VALUES = {client: np.random.default_rng(client).integers(-(2**20), 2**20, LENGTH) for client in CLIENTS}


def test_graph_is_sparse_and_symmetric():
    """All clients have the same number of neighbours, and neighbours have each other; every round has another ring."""
    assert {len(partners) for partners in LAYOUT.graph.partners.values()} == {RING.degree} != {23}
    for client in CLIENTS:
        assert all(client in LAYOUT.partners(other) for other in LAYOUT.partners(client))
        assert list(LAYOUT.holders(client)) == sorted([client, *LAYOUT.partners(client)])
    other = laid_out(dict.fromkeys(CLIENTS, EVERYTHING), b"\1" * 32)
    assert other.graph != LAYOUT.graph == laid_out(dict.fromkeys(CLIENTS, EVERYTHING)).graph


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "survivors", "reveal"])
def test_sum_is_exact_where_clients_drop_out(step):
    """Two of 24, as many as stated, at any step."""
    dies = dict.fromkeys((3, 17), step)
    round_ = PEOPLE.round(1, LAYOUT, VALUES, dies=dies)
    assert round_.run().tolist() == plain_sum(LAYOUT, VALUES, round_.alive("masked", CLIENTS)).tolist()


@pytest.mark.parametrize("step", ["keys", "masked", "reveal"])
def test_no_sum_where_a_neighbourhood_is_lost(step):
    """Two thirds of all clients are there, and those of one stretch of the ring are not."""
    dies = dict.fromkeys(RING.clients[:6], step)
    with pytest.raises(AbortedRoundError, match=r"threshold|come apart|shares of at least"):
        PEOPLE.round(1, LAYOUT, VALUES, dies=dies).run()


def test_unequal_submodels_are_masked_by_their_own_contributors():
    """Wide clients that are far from each other on the ring of all have a ring of their own, and sums are exact."""
    wide = set(RING.clients[::12]) | set(RING.clients[1::12])
    narrow = np.arange(LENGTH // 4)
    layout = laid_out({client: EVERYTHING if client in wide else narrow for client in CLIENTS})
    assert all(wide - {client} <= set(layout.partners(client)) for client in wide)
    assert all(len(wide & set(layout.holders(client))) == 2 for client in wide)
    values = {client: VALUES[client][: layout.size(client)] for client in CLIENTS}
    round_ = PEOPLE.round(1, layout, values, dies={3: "masked"})
    assert round_.run().tolist() == plain_sum(layout, values, [one for one in CLIENTS if one != 3]).tolist()


def test_messages_grow_with_the_neighbours_only():
    """Two shares of 54 bytes, nonce and tag for each neighbour; all of the neighbours' shares are revealed."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES).until_masked()
    again = PEOPLE.round(1, LAYOUT, VALUES)
    keys = again.keys()
    needed = again.server.keys_for(5, keys)
    assert len(needed) == RING.degree + 1
    assert len(again.clients[5].share_secrets(needed).body) == RING.degree * (2 * 46 + 28)
    assert {len(message.body) for message in round_.reveals()} == {(RING.degree + 1) * 46}


def surrounded(victim, colluders):
    """The graph that a server would choose: its colluders are the victim's neighbours."""
    others = [client for client in CLIENTS if client not in {victim, *colluders}]
    half = RING.half
    order = (*colluders[:half], victim, *colluders[half:], *others)
    ring = Ring(order, half, RING.gap)
    return replace(LAYOUT, graph=NeighbourGraph(ring, (ring,), LAYOUT.graph.threshold))


def opened(round_, victim, colluders):
    """What server and colluders make of the victim's masked values: with all that they hold, or None."""
    held = {kind: {} for kind in SecretKind}
    for one in colluders:
        for share in round_.clients[one]._held.get(victim, []):
            held[share.secret][share.share.point] = share.share
    try:
        key, seed = join(held[SecretKind.MASKING_KEY]), join(held[SecretKind.SELF_MASK])
    except ValueError:
        return None
    words = round_.sent[victim].copy()
    add_stream(words, seed, negative=True)
    pair = type(round_.clients[victim]._masking)(victim, key)
    public = {one: keys.masking for one, keys in round_.server.roster.items()}
    keys = PairwiseKeys(pair, round_.session, round_.number, public.__getitem__, None)
    layout = round_.layout
    return words - pairwise_mask(layout, keys, layout.partners(victim))


def played(layout, rules_too):
    """A round up to the masked values; the clients' rules have the server's graph where they take its word."""
    round_ = PEOPLE.round(1, layout, VALUES) if rules_too else PEOPLE.round(1, LAYOUT, VALUES)
    round_.keys()
    round_.shares()
    round_.sent = {client: np.frombuffer(round_.masked_by(client).body, NARROW) for client in CLIENTS}
    return round_


def test_server_that_chooses_neighbours_reads_an_update():
    """Colluders around the victim hold enough shares of both of its secrets. That is why no server chooses."""
    colluders = [client for client in CLIENTS if client != 7][: RING.degree]
    round_ = played(surrounded(7, colluders), rules_too=True)
    assert (opened(round_, 7, colluders) == VALUES[7].astype(np.int32).view(np.uint32)).all()


def test_clients_take_no_graph_from_the_server():
    """They derive it from the public randomness, and refuse a round with another one."""
    chosen = surrounded(7, [client for client in CLIENTS if client != 7][: RING.degree])
    rules = PEOPLE.round(1, LAYOUT, VALUES).rules
    with pytest.raises(AbortedRoundError, match="the server names other neighbours"):
        rules.require_majority(chosen)
    with pytest.raises(AbortedRoundError, match="the server names other neighbours"):
        rules.require_majority(replace(LAYOUT, graph=None))


def test_colluders_below_the_threshold_learn_nothing():
    """All neighbours of the victim but one stretch: too few shares, and what is left under known masks is uniform."""
    neighbours = sorted(LAYOUT.partners(7))
    bound = 2 * LAYOUT.needed - RING.degree - 2
    round_ = played(LAYOUT, rules_too=False)
    for colluders in (neighbours[:bound], neighbours[: LAYOUT.needed - 1]):
        assert opened(round_, 7, colluders) is None
        rest = round_.sent[7].copy()
        known = PairwiseKeys(
            round_.clients[7]._masking,
            round_.session,
            1,
            lambda one: round_.server.roster[one].masking,
            None,
        )
        rest -= pairwise_mask(LAYOUT, known, colluders)
        counts = np.bincount(np.frombuffer(rest.tobytes(), dtype=np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-9
    assert opened(round_, 7, neighbours[: LAYOUT.needed]) is not None


def test_server_with_two_lists_gets_one_secret_at_most():
    """It calls one client lost before half of the others and alive before the rest; neither list has a majority."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES).until_masked()
    victim, told = RING.clients[0], set(CLIENTS) - {RING.clients[0]}
    deceived = set(RING.clients[1:13])
    lists = {client: told if client in deceived else CLIENTS for client in CLIENTS}
    signed = [round_.clients[client].sign_survivors(lists[client]) for client in CLIENTS]
    revealed = dict.fromkeys(SecretKind, 0)
    for client in LAYOUT.holders(victim):
        with suppress(AbortedRoundError):
            round_.clients[client].reveal_shares(signed)
            revealed[SecretKind.MASKING_KEY if client in deceived else SecretKind.SELF_MASK] += 1
    assert min(revealed.values()) < LAYOUT.needed


def test_a_list_that_only_neighbours_sign_reveals_nothing():
    """Wide clients far from each other on the ring of all: their neighbourhoods could be shown lists of their own."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES).until_masked()
    signed = [round_.clients[client].sign_survivors(CLIENTS) for client in LAYOUT.holders(7)]
    assert LAYOUT.needed <= len(signed) < LAYOUT.threshold
    with pytest.raises(AbortedRoundError, match="signed the list of survivors that client 7 got"):
        round_.clients[7].reveal_shares(signed)


def test_keys_that_the_server_keeps_are_missed():
    """A client masks with all of its partners that go on, and does not start without one's keys."""
    wide = set(RING.clients[::12])
    layout = laid_out({client: EVERYTHING if client in wide else EVERYTHING[:9] for client in CLIENTS})
    round_ = PEOPLE.round(1, layout, VALUES)
    one, other = wide
    advertised = round_.keys()
    kept = [message for message in advertised if message.sender != other]
    round_.clients[one].share_secrets(round_.server.keys_for(one, kept))
    round_.clients[one]._held = {holder: [] for holder in layout.holders(one)}
    with pytest.raises(AbortedRoundError, match=f"client {one} got no keys of clients {other}"):
        round_.clients[one].set_peers(CLIENTS)
