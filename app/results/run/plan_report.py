"""Report of a plan: the audit as a table, as conclusions, and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.common.files import csv_text
from app.common.wording import counted
from app.federation.module import FederatedModule
from app.federation.plan import ClientPool
from app.federation.plan_audit.audit import LayerAudit, PlanAudit
from app.federation.plan_audit.release_ledger import ReleaseLedger
from app.results.text_table import table_lines, text_table

MOST_CLIENTS_IN_WORDS = 12
MOST_LAYERS_IN_WORDS = 5

CELLS = "cells"
"""The number of weights in the files."""


@dataclass(frozen=True)
class PlanColumn:
    """One number of a layer."""

    key: str  # the name in `plan.json` and `plan.csv`; but for `cells`, the attribute of `LayerAudit`
    head: str  # the name in the terminal
    form: str  # format of the number in the terminal
    meaning: str  # what it says, in a few words

    def value(self, layer: LayerAudit) -> Any:
        return layer.coordinates if self.key == CELLS else getattr(layer, self.key)

    def text(self, layer: LayerAudit) -> str:
        value = self.value(layer)
        unknown = value is None or (self.key != CELLS and not layer.coordinates)
        return "-" if unknown else format(value, self.form)


COLUMNS = (
    PlanColumn(CELLS, "weights", ",", "weights, biases and buffers that clients send"),
    PlanColumn("trained", "trained", ".2%", "share of the weights that are trained in an average round"),
    PlanColumn("trained_once", "ever", ".2%", "share of the weights that are trained in at least one round"),
    PlanColumn("fewest", "min", "d", "fewest clients that train a weight in a round"),
    PlanColumn("median", "med", "g", "median of the clients that train a weight in a round"),
    PlanColumn("most", "max", "d", "most clients that train a weight in a round"),
    PlanColumn("nobody", "nobody", ",", "(weight, round) pairs that no client trains"),
    PlanColumn("single", "one", ",", "(weight, round) pairs that a single client trains"),
    PlanColumn("changed", "changed", ",", "(weight, round) pairs whose clients are not those of the round before"),
    PlanColumn("changed_by_one", "by one", ",", "... by a single client that joins or leaves"),
    PlanColumn("smallest_change", "least", "d", "fewest clients by which a weight's clients change, where they change"),
)


def header(federation: FederatedModule, audit: PlanAudit) -> str:
    """Method, clients, widths and rounds in one line."""
    client_pool, rounds = federation.client_pool, len(audit.rounds)
    clients_by_width = sorted(Counter(client_pool.capacities).items(), reverse=True)
    widths = ", ".join(f"{clients} of width {rate:g}" for rate, clients in clients_by_width)
    if client_pool.redraw:
        widths += ", dealt anew in every round"
    if further := sorted(set(federation.widths) - set(client_pool.capacities), reverse=True):
        widths += f", who also train widths {', '.join(f'{rate:g}' for rate in further)}"
    taking_part = len(client_pool.participants(audit.rounds[0]))
    return (
        f"{federation.method.title}: {counted(len(client_pool.sizes), 'client')} ({widths}), "
        f"{counted(rounds, 'round')} with {counted(taking_part, 'client')} each{_growth(client_pool)}"
    )


def _growth(client_pool: ClientPool) -> str:
    """Who joins late, and what is added then; empty where nothing changes."""
    if client_pool.joining is None:
        return ""
    grows = f", until then {client_pool.dictionary:.0%} of the factors" if client_pool.dictionary < 1 else ""
    return (
        f"; {counted(len(client_pool.absent), 'client')} may take part from round {client_pool.joining + 1} on{grows}"
    )


def table(audit: PlanAudit) -> str:
    """One row per layer and one for all, columns aligned, and what the columns mean."""
    rows = [[layer.name, *(column.text(layer) for column in COLUMNS)] for layer in (*audit.layers, audit.total)]
    head, rule, *layers, total = table_lines(["layer", *(column.head for column in COLUMNS)], rows)
    legend = text_table((), [(column.head, column.meaning) for column in COLUMNS], left=(0, 1), indent="  ")
    return "\n".join([head, rule, *layers, rule, total, "", legend])


def findings(audit: PlanAudit, uncovered: str, ledger: ReleaseLedger) -> list[str]:
    """Conclusions from the numbers, a sentence or two each; `uncovered` is the setting for weights without updates."""
    total = audit.total
    if not total.coordinates:
        return ["nothing is sent: all weights stay on the clients, and there is nothing to aggregate"]
    combined = f"sums of all rounds, if the model stood still: {ledger.text(ledger.planned)}"
    return [*_personal(audit), _alone(audit), _changes(audit), combined, _uncovered(total, uncovered)]


def _personal(audit: PlanAudit) -> list[str]:
    kept = [layer.name for layer in audit.layers if not layer.coordinates]
    return [f"layers that stay on the clients and are never sent: {', '.join(kept)}"] if kept else []


def _alone(audit: PlanAudit) -> str:
    total = audit.total
    if not total.single:
        return "weights with a single contributor: none; no sum consists of one client's update"
    return (
        f"weights with a single contributor: {_share(total.single, total.pairs)}, in {_where(audit, 'single')}; "
        f"only {_clients(total.alone)} ever {'trains' if len(total.alone) == 1 else 'train'} weights alone: secure "
        f"aggregation would reveal {'its' if len(total.alone) == 1 else 'their'} update there"
    )


def _changes(audit: PlanAudit) -> str:
    total = audit.total
    if not total.changed:
        return "changes between rounds: none; every weight keeps its contributors"
    if not total.changed_by_one:
        changed = _share(total.changed, _moves(total))
        return f"changes between rounds: {changed}, by {counted(total.smallest_change or 0, 'client')} or more"
    return (
        f"changes by a single client: {_share(total.changed_by_one, _moves(total))}, in "
        f"{_where(audit, 'changed_by_one')}; an adversary with the sums of both rounds can narrow down the update of "
        f"the one who joins or leaves: {_clients(total.exposed)}"
    )


def _uncovered(total: LayerAudit, uncovered: str) -> str:
    if not total.nobody:
        return "uncovered weights: none; every weight is trained in every round"
    becomes = {"keep": "keep their value", "zero": "become zero"}[uncovered]
    return (
        f"uncovered weights: {1 - total.trained:.2%} of the weights are trained by nobody in an average round, "
        f"{1 - total.trained_once:.2%} in no round at all; without an update they {becomes} "
        f"(uncovered_cells: {uncovered})"
    )


def plain_plan(federation: FederatedModule, audit: PlanAudit, ledger: ReleaseLedger) -> dict[str, Any]:
    """Settings and audit as plain data for JSON."""
    client_pool = federation.client_pool
    return {
        "method": federation.method.title,
        "seed": client_pool.seed,
        "data_seed": federation.data.seed,
        "network": type(federation.net).__name__,
        "rounds": len(audit.rounds),
        "widths": federation.widths,
        "capacities": client_pool.capacities,
        "redraw": client_pool.redraw,
        "participation": client_pool.participation,
        "sizes": client_pool.sizes,
        "personal": federation.personal_patterns,
        "mask_labels": federation.local.mask_labels,
        "uncovered_cells": federation.uncovered_cells,
        "participants": [client_pool.participants(round_) for round_ in audit.rounds],
        "layers": [_plain(layer) for layer in audit.layers],
        "total": _plain(audit.total),
        "combined": asdict(ledger.planned) if ledger.planned is not None else None,
    }


def rows_csv(audit: PlanAudit) -> str:
    """The table as CSV: one row per layer and the total; client ids separated by spaces."""
    rows = [["name", *(column.key for column in COLUMNS), "alone", "exposed"]]
    for layer in (*audit.layers, audit.total):
        clients = [" ".join(map(str, ids)) for ids in (layer.alone, layer.exposed)]
        rows.append([layer.name, *(column.value(layer) for column in COLUMNS), *clients])
    return csv_text(rows)


def _plain(layer: LayerAudit) -> dict[str, Any]:
    plain = {CELLS if name == "coordinates" else name: value for name, value in asdict(layer).items()}
    return plain | {column.key: column.value(layer) for column in COLUMNS} | {"pairs": layer.pairs}


def _moves(layer: LayerAudit) -> int:
    return layer.coordinates * (layer.rounds - 1)


def _share(pairs: int, of: int) -> str:
    return f"{pairs:,} of {of:,} (weight, round) pairs ({pairs / of:.2%})"


def _where(audit: PlanAudit, key: str) -> str:
    sent = [layer for layer in audit.layers if layer.coordinates]
    places = [layer.name for layer in sent if getattr(layer, key)]
    if len(places) == len(sent):
        return "all layers"
    return ", ".join(places) if len(places) <= MOST_LAYERS_IN_WORDS else f"{len(places)} of {len(sent)} layers"


def _clients(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"client {ids[0]}"
    if len(ids) > MOST_CLIENTS_IN_WORDS:
        return f"{counted(len(ids), 'client')} (plan.json names them)"
    return f"clients {', '.join(map(str, ids[:-1]))} and {ids[-1]}"
