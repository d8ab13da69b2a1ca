"""What must be known to read a table and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.results.attacks.headline import headline_rank, target_kind
from app.results.comparison.rows import RowRuns
from app.results.comparison.table import Row, Value

SWAPPED = "lies below chance beyond its interval in every run: its score or the labels are probably swapped"

STANDING = (
    "best and worse: all pairs of rows of a dataset are compared over the seeds that they share. Two rows differ where "
    "their own paired t-test says so (4 %) and also a test that measures chance on all rows, corrected for the number "
    "of pairs (randomised blocks, Holm). A row is best only where every other row differs from it; rows that cannot be "
    "told from the best are indistinguishable, not equal."
)
SEEDS = "intervals: 95 %, Student's over the seeds: they tell about training again."
TWO_SEEDS = "with two seeds intervals are very wide, and rightly so; three or more are needed to tell rows apart."
SAMPLES = (
    "intervals of rows with one seed tell about other samples of the same run, not about training again; numbers that "
    "a single run gives no interval for have none."
)
FEW_SEEDS = (
    "rows that share fewer than three seeds: the areas of their strongest attacks are compared by a paired bootstrap "
    "of the audited samples, which speaks of these runs alone, and with two seeds both must differ; accuracies and "
    "costs are not compared."
)
HEADLINE = (
    "strongest attack: that of the largest mean AUC over the seeds, among those that ran on the row, so that no seed "
    "picks its luckiest attack. `adaptive` marks attackers who know the defense."
)
EPSILON = "epsilon: at the delta told in the row's notes; above 10 it is no meaningful promise, and `nominal` is none."
RECOVERED = (
    "recovered images: where seeds are fewer than three, or all differ alike, Fisher's exact test of the images of all "
    "runs, which speaks of these runs alone."
)
COUNTED = "bytes are counted: where they are the same for every seed, rows are compared without a test."


def cell_notes(cell: RowRuns, expected: Sequence[int], attacked: frozenset[str]) -> tuple[str, ...]:
    """What must be known to read a row.

    Args:
        cell: its runs.
        expected: all seeds that rows of the dataset have.
        attacked: labels of attackers who do not know the defense, that rows of the dataset were attacked with.
    """
    return tuple(dict.fromkeys([*cell.notes, *_seeds(cell, expected), *_of_runs(cell), *_attacks(cell, attacked)]))


def attacks_of(cells: Iterable[RowRuns]) -> frozenset[str]:
    """Labels of all results of attackers who do not know the defense."""
    records = [record for cell in cells for run in cell.runs for record in run.attacks]
    return frozenset(record.label for record in records if not record.conditions.adaptation)


def table_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """How the table was made, as far as it concerns these rows."""
    values = [(key, value) for row in rows for key, value in row.values.items() if isinstance(value, Value)]
    present = {
        STANDING: any(value.standing != "unknown" for _, value in values),
        SEEDS: any(value.interval == "seeds" for _, value in values),
        TWO_SEEDS: any(len(row.seeds) == 2 for row in rows),
        SAMPLES: any(value.interval == "samples" for _, value in values),
        FEW_SEEDS: _few(rows),
        HEADLINE: any(key.endswith("_auc") for key, _ in values),
        EPSILON: any(key == "epsilon" for key, _ in values),
        RECOVERED: any(key.startswith("recovered") and value.standing != "unknown" for key, value in values),
        COUNTED: any(key.startswith("megabytes") and value.standing in ("best", "worse") for key, value in values),
    }
    return tuple(text for text, holds in present.items() if holds)


def numbered(notes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Notes of a row's numbers, each with the title of its measure."""
    for title, texts in notes.items():
        yield from (f"{title}: {text}" for text in texts)


def _few(rows: Sequence[Row]) -> bool:
    """Whether two rows of a dataset share fewer than three seeds."""
    pairs = [(one, two) for one in rows for two in rows if one is not two and one.dataset == two.dataset]
    return any(0 < len(set(one.seeds) & set(two.seeds)) < 3 for one, two in pairs)


def _seeds(cell: RowRuns, expected: Sequence[int]) -> Iterator[str]:
    if missing := [str(seed) for seed in expected if seed not in cell.seeds]:
        yield f"has no run of {'seed' if len(missing) == 1 else 'seeds'} {', '.join(missing)}, which other rows have"


def _of_runs(cell: RowRuns) -> Iterator[str]:
    for run in cell.runs:
        yield from (f"{run.name}: {note}" for note in run.notes)
        yield from (budget.line() for budget in run.budgets)
        for channel in run.channels:
            if channel.simulated:
                yield f"{channel.mechanism} was simulated: the same numbers without cryptography, its cost extrapolated"
            if channel.accepted:
                yield f"leaks of the plan were accepted: {'; '.join(channel.accepted)}"


def _attacks(cell: RowRuns, attacked: frozenset[str]) -> Iterator[str]:
    found = [(run.labels.seed, record) for run in cell.runs for record in run.attacks]
    for seed, record in found:
        if record.failed and isinstance(record.leakage, NotAvailable):
            yield f"{record.label} failed (seed {seed}): {record.leakage.reason}"
    yield from _swapped(cell)
    for run in cell.runs:
        for rebuilt in run.reconstructions:
            if rebuilt.failed and isinstance(rebuilt.result, NotAvailable):
                yield f"{rebuilt.label} failed (seed {run.labels.seed}): {rebuilt.result.reason}"
    yield from _weaker(cell, attacked)


def _swapped(cell: RowRuns) -> Iterator[str]:
    """Attacks below chance in every seed; among many attacks and seeds, a single one is there by chance."""
    inverted: dict[str, list[bool]] = {}
    for record in (record for run in cell.runs for record in run.attacks):
        if isinstance(record.leakage, Leakage):
            inverted.setdefault(record.label, []).append(record.leakage.inverted)
    yield from (f"{label} {SWAPPED}" for label, seeds in inverted.items() if all(seeds))


def _weaker(cell: RowRuns, attacked: frozenset[str]) -> Iterator[str]:
    """Attacks without a number although others on the same target have one: the strongest may be among them."""
    records = [record for run in cell.runs for record in run.attacks]
    measured = {record.label: record for record in records if isinstance(record.leakage, Leakage)}
    if not measured:
        return
    kinds = {target_kind(record) for record in measured.values()}
    unmeasured = {
        record.label
        for record in records
        if record.label not in measured and target_kind(record) in kinds and not any(headline_rank(record))
    }
    never = attacked - {record.label for record in records}
    if missing := sorted(unmeasured | never):
        yield f"the strongest attack is one of fewer than elsewhere: no number for {', '.join(missing)}"
