"""The ledger of released sums: whom combinations of them isolate, against rational arithmetic and known answers."""

from datetime import timedelta
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from channel_kit import NET, SIZES, Dying, over
from federation_kit import Blobs, Recorder, run, small_federation
from test_guard import prepared

from app.common.errors import UserError
from app.federation.plan_audit import row_spaces
from app.federation.plan_audit.guard import examine
from app.federation.plan_audit.release_ledger import PlanBlocks, ReleaseLedger
from app.federation.plan_audit.row_spaces import RowSpaces
from app.federation.submodels import FedRolex, Prefix
from callbacks.defenses.secure_aggregation import SecureAggregation


def rank(rows):
    """Of a matrix, in rational numbers."""
    rows, done = [[Fraction(int(entry)) for entry in row] for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        lead = next((number for number in range(done, len(rows)) if rows[number][column]), None)
        if lead is None:
            continue
        rows[done], rows[lead] = rows[lead], rows[done]
        for number in range(done + 1, len(rows)):
            factor = rows[number][column] / rows[done][column]
            rows[number] = [one - factor * other for one, other in zip(rows[number], rows[done], strict=True)]
        done += 1
    return done


def narrowed_down(rows, k):
    """Clients of the smallest sets of fewer than k that some combination of rows is about: rank falls without them."""
    clients, found = rows.shape[1], []
    for size in range(1, min(k, clients + 1)):
        for some in combinations(range(clients), size):
            others = [client for client in range(clients) if client not in some]
            if not any(smaller <= set(some) for smaller in found) and rank(rows[:, others]) < rank(rows):
                found.append(set(some))
    return set().union(*found)


def spaces_of(*matrices):
    """Row spaces of matrices with equally many rows."""
    spaces = RowSpaces(len(matrices), matrices[0].shape[1])
    for rows in zip(*matrices, strict=True):
        spaces.add(np.array(rows, dtype=bool))
    return spaces


def clients_in(found):
    """Per space."""
    return [set(np.flatnonzero(row).tolist()) for row in found]


def sums(clients, *sets):
    """A matrix of sums."""
    rows = np.zeros((len(sets), clients), dtype=bool)
    for row, some in zip(rows, sets, strict=True):
        row[list(some)] = True
    return rows


def test_sums_with_known_answers():
    """A triangle isolates all, a path of even length nobody; whole rounds nobody; a pair is narrowed down for k = 3."""
    triangle, path = sums(4, {0, 1}, {1, 2}, {0, 2}), sums(4, {0, 1}, {1, 2}, {2, 3})
    whole, nested = sums(4, *[{0, 1, 2, 3}] * 3), sums(4, {0, 1, 2, 3}, {2, 3}, set())
    found = spaces_of(triangle, path, whole, nested)
    assert clients_in(found.isolated(2)) == [{0, 1, 2}, set(), set(), set()]
    assert clients_in(found.isolated(3)) == [{0, 1, 2}, {0, 1, 2, 3}, set(), {0, 1, 2, 3}]
    assert found.rank.tolist() == [3, 3, 1, 2]


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_random_sums_against_rational_arithmetic(k):
    """Row by row, for one client and for every smallest set of clients."""
    draw = np.random.default_rng(k)
    for _ in range(6):
        rounds, clients = int(draw.integers(1, 8)), int(draw.integers(3, 7))
        matrices = [draw.random((rounds, clients)) < 0.5 for _ in range(2)]
        found = clients_in(spaces_of(*matrices).isolated(k))
        assert found == [narrowed_down(matrix.astype(int), k) for matrix in matrices]


def test_what_is_shown_without_trying_all_sets(monkeypatch):
    """A lower bound for three and more clients; one and two are exact however many clients there are."""
    draw = np.random.default_rng(1)
    matrix = draw.random((4, 7)) < 0.5
    exact = clients_in(spaces_of(matrix).isolated(4))[0]
    monkeypatch.setattr(row_spaces, "MOST_SETS", 0)
    assert clients_in(spaces_of(matrix).isolated(4))[0] <= exact
    assert clients_in(spaces_of(matrix).isolated(3))[0] == narrowed_down(matrix.astype(int), 3)


def ledger_of(federation, k=2):
    """The ledger of a prepared federation."""
    blocks = PlanBlocks(federation)
    examine(federation, k, blocks)
    return ReleaseLedger(federation, blocks, k)


def participants(federation, rounds):
    """Of every round, as a matrix."""
    return sums(8, *(federation.plan_of(round_).participants for round_ in range(rounds)))


@pytest.mark.parametrize("k", [2, 3])
def test_half_of_the_clients_in_every_round(k):
    """The first round that isolates a client, and whom the last one does, are those of rational arithmetic."""
    federation = prepared(rounds=12, capacities=[1.0], participation=0.5)
    rows = participants(federation, 12).astype(int)
    first = next(after for after in range(1, 13) if narrowed_down(rows[:after], k))
    found = ledger_of(federation, k).planned
    assert (found.first, set(found.clients)) == (first, narrowed_down(rows, k))
    assert found.coordinates == federation.space.size


@pytest.mark.parametrize("method", [Prefix(), FedRolex()])
def test_blocks_do_not_combine(method):
    """Unequal submodels: against the sums of every coordinate, written out round by round."""
    federation = prepared(rounds=6, method=method, capacities=[1.0, 1.0, *[0.5] * 6], participation=0.75)
    ever, weights = set(), 0
    plans = [federation.plan_of(round_) for round_ in range(6)]
    held = [{client: set(plan.index(client).tolist()) for client in plan.participants} for plan in plans]
    for coordinate in range(federation.space.size):
        rows = sums(8, *({client for client, mine in one.items() if coordinate in mine} for one in held))
        if alone := clients_in(spaces_of(rows).isolated(2))[0]:
            ever, weights = ever | alone, weights + 1
    found = ledger_of(federation).planned
    assert (set(found.clients), found.coordinates) == (ever, weights)


def test_plans_that_isolate_nobody():
    """Everybody in every round: one sum, however often."""
    for capacities in ([1.0], [1.0, 1.0, *[0.5] * 6]):
        ledger = ledger_of(prepared(rounds=20, capacities=capacities))
        assert ledger.planned is None
        assert ledger.text(None) == "no combination of sums isolates single clients"
    assert ledger_of(prepared(personal=["*"])).planned is None


def test_a_bound_is_told(monkeypatch):
    """Where not all blocks are examined, the text says how many weights were."""
    monkeypatch.setattr("app.federation.plan_audit.release_ledger.MOST_ENTRIES", 1)
    ledger = ledger_of(prepared(rounds=3, capacities=[1.0, 1.0, *[0.5] * 6]))
    assert "(examined: 35 of 67 weights)" in ledger.text(None)


def test_strict_plans_are_refused_with_names_and_numbers():
    """The default warns of the same."""
    half = {"net": NET, "participation": 0.5}
    found = "combinations of sums isolate single clients on 191 of 191 weights: clients 0, 1, 2, 3, 4, 5, 6, 7"
    with pytest.raises(UserError, match=rf"from round \d+ on, {found}") as error:
        run(small_federation(**half), Blobs(SIZES), 16, [SecureAggregation(guard="strict")])
    assert "--defenses.NAME.guard warn" in error.value.problems[0].remedy
    with pytest.raises(UserError, match="one refuses what the other accepts"):
        run(small_federation(**half), Blobs(SIZES), 1, [SecureAggregation(guard="strict", allow_singletons=True)])
    defense, federation = SecureAggregation(), prepared(rounds=16, net=NET, capacities=[1.0], participation=0.5)
    assert list(defense.problems(federation)) == []
    statement = defense.channel_statement(federation)
    assert "whose models differ from round to round" in statement.hides
    assert "never one of them" not in statement.line()
    notes = " ".join(statement.notes)
    assert "if the model stood still (as planned): from round" in notes
    assert found in notes
    assert "nearly repeats a model" in notes


ONE_ROUND = timedelta(microseconds=1)
"""Time after which a run ends with its first round."""


def test_warned_of_before_the_first_round():
    """With the option that refuses."""
    with pytest.warns(UserWarning, match=r"combinations of sums isolate single clients .*\.guard strict"):
        run(small_federation(net=NET, participation=0.5), Blobs(SIZES), 12, [SecureAggregation()], max_time=ONE_ROUND)


@pytest.mark.filterwarnings("ignore:(round|the masked)")
def test_drop_outs_that_would_isolate_a_client_end_the_round():
    """One of eight is lost in round 2: with the sum of round 1, the difference would be its update."""
    lost = Dying([3], "masked", round_=2)
    for guard, counted in (("strict", [8, 0, 8]), ("warn", [8, 7, 8])):
        defense, recorder = over(lost, SecureAggregation, guard=guard), Recorder()
        model = small_federation(net=NET)
        with pytest.warns(UserWarning, match=r"isolate client 3 if the model stood still"):
            run(model, Blobs(SIZES), 3, [defense, recorder])
        assert [updates for _, _, updates in recorder.aggregates] == counted
        found = "from round 2 on, combinations of sums isolate single clients on 191 of 191 weights: client 3"
        told = "no combination of sums isolates single clients" if guard == "strict" else found
        assert f"(so far): {told}" in " ".join(defense.channel_statement(model).notes)


@pytest.mark.filterwarnings("ignore:(round|the masked)")
def test_releases_survive_a_resume():
    """What earlier sums isolate together with a new one is known after a restart."""
    federation = prepared(rounds=2, capacities=[1.0])
    first, plan = ledger_of(federation), federation.plan_of(0)
    first.release(plan, range(8))
    other = ledger_of(federation)
    other.load_state_dict(first.state_dict())
    assert other.isolates(federation.plan_of(1), range(7)) == (7,)
    assert ledger_of(federation).isolates(federation.plan_of(1), range(7)) == ()
