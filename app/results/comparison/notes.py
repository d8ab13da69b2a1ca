"""Remarks on a table and on its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.common.wording import counted
from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.results.attacks.headline import headline_rank, target_kind
from app.results.comparison.rows import RowRuns
from app.results.comparison.table import Row, Value
from app.results.run.labels import settings_of

SWAPPED = "lies below chance beyond its interval in every run: its score or the labels are probably swapped"

STANDING = (
    "best and worse: all pairs of rows of a dataset are compared over their common seeds. Two rows differ if a paired "
    "t-test is significant (4 %) and so is a test with the variance pooled over all rows, corrected for the number of "
    "pairs (randomised blocks, Holm). A row is best only if every other row differs from it; rows that do not differ "
    "from the best are indistinguishable, not equal."
)
SEEDS = "intervals: 95 %, Student's t over the seeds; they cover repeated training."
TWO_SEEDS = "with two seeds intervals are very wide; three or more seeds are needed to tell rows apart."
SAMPLES = (
    "intervals of rows with one seed cover other samples of the same run, not repeated training; numbers for which a "
    "single run gives no interval have none."
)
FEW_SEEDS = (
    "rows with fewer than three common seeds: the AUC of their strongest attacks are compared by a paired bootstrap of "
    "the audited samples, which holds for these runs only, and with two seeds both must differ; accuracies and costs "
    "are not compared."
)
HEADLINE = (
    "strongest attack: the one with the largest mean AUC over the seeds, among those that ran on the row; choosing it "
    "for every seed would favour the luckiest. `adaptive` marks attackers who know the defense."
)
EPSILON = "epsilon: at the delta in the row's notes; above 10 it guarantees little, and `nominal` is no guarantee."
RECOVERED = (
    "recovered images: with fewer than three seeds, or without variation over seeds, Fisher's exact test of the images "
    "of all runs, which holds for these runs only."
)
LOAD = 1.5
"""Wall-clock over CPU seconds: the largest of a dataset's runs over the smallest, above which a note says so."""

COUNTED = "bytes are counted: where they are the same for every seed, rows are compared without a test."


def notes_of_row(row_runs: RowRuns, expected: Sequence[int], attacked: frozenset[str]) -> tuple[str, ...]:
    """Remarks on a row.

    Args:
        row_runs: its runs.
        expected: all seeds that rows of the dataset have.
        attacked: labels of attackers who do not know the defense, that rows of the dataset were attacked with.
    """
    return tuple(
        dict.fromkeys(
            [
                *row_runs.notes,
                *_seeds(row_runs, expected),
                *_wrong_labels(row_runs),
                *_of_runs(row_runs),
                *_attacks(row_runs, attacked),
            ]
        )
    )


def attacks_of(rows: Iterable[RowRuns]) -> frozenset[str]:
    """Labels of all results of attackers who do not know the defense."""
    records = [record for row_runs in rows for run in row_runs.runs for record in run.attacks]
    return frozenset(record.label for record in records if not record.conditions.adaptation)


def shadow_note(rows: Iterable[RowRuns]) -> tuple[str, ...]:
    """How many shadow models the runs have trained, and how many training runs they have saved each other."""
    costs = [run.cost for row_runs in rows for run in row_runs.runs]
    trained, reused = (
        int(sum(cost.get(f"attack_phase/shadows_{what}", 0) for cost in costs)) for what in ("trained", "reused")
    )
    if not trained + reused:
        return ()
    return (f"{counted(trained, 'shadow model')} trained, {reused:,} reused: runs share those that would be equal.",)


def table_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """How the numbers were computed and tested, as far as it concerns these rows."""
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
    datasets = dict.fromkeys(row.dataset for row in rows)
    loads = (note for dataset in datasets for note in _unequal_load([row for row in rows if row.dataset == dataset]))
    return (*(text for text, holds in present.items() if holds), *loads)


def _unequal_load(rows: Sequence[Row]) -> Iterator[str]:
    """Runs of a dataset that had unequal shares of the machine; runs without CPU seconds do not count."""
    waits: dict[str, float] = {}
    for row in rows:
        wall, cpu = row.values.get("seconds"), row.values.get("cpu_seconds")
        if isinstance(wall, Value) and isinstance(cpu, Value):
            both = [seed for seed in wall.by_seed if cpu.by_seed.get(seed)]
            waits |= {f"{row.name}, seed {seed}": wall.by_seed[seed] / cpu.by_seed[seed] for seed in both}
    if not waits:
        return
    least, most = min(waits, key=waits.__getitem__), max(waits, key=waits.__getitem__)
    if waits[most] > LOAD * waits[least]:
        yield (
            f"{rows[0].dataset}: wall-clock seconds are not comparable. For each CPU second they are between "
            f"{waits[least]:.2g} ({least}) and {waits[most]:.2g} ({most}): other programs or runs took part of the "
            "machine, or these runs use more cores or a GPU. Compare CPU seconds, or repeat the runs one at a time "
            "(--jobs 1)."
        )


def _few(rows: Sequence[Row]) -> bool:
    """Whether two rows of a dataset share fewer than three seeds."""
    pairs = [(one, two) for one in rows for two in rows if one is not two and one.dataset == two.dataset]
    return any(0 < len(set(one.seeds) & set(two.seeds)) < 3 for one, two in pairs)


def _seeds(row_runs: RowRuns, expected: Sequence[int]) -> Iterator[str]:
    if missing := [str(seed) for seed in expected if seed not in row_runs.seeds]:
        yield f"has no run of {'seed' if len(missing) == 1 else 'seeds'} {', '.join(missing)}, which other rows have"


def _wrong_labels(row_runs: RowRuns) -> Iterator[str]:
    for run in row_runs.runs:
        share = settings_of(run.config.get("data")).get("label_noise")
        if isinstance(share, float) and share > 0:
            yield f"{share:.0%} of the training labels were made wrong; accuracies are measured by the right ones"


def _of_runs(row_runs: RowRuns) -> Iterator[str]:
    for run in row_runs.runs:
        yield from (f"{run.name}: {note}" for note in (*run.warnings, *run.notes))
        yield from (budget.line() for budget in run.budgets)
        broken = (claim for record in run.canaries for claim in record.broken)
        yield from (f"{run.name}: error: {claim.text}" for claim in broken)
        for channel in run.channels:
            if channel.simulated:
                yield f"{channel.mechanism} was simulated: the same numbers without cryptography, its cost extrapolated"
            if channel.accepted:
                yield f"leaks of the plan were accepted: {'; '.join(channel.accepted)}"


def _attacks(row_runs: RowRuns, attacked: frozenset[str]) -> Iterator[str]:
    for run in row_runs.runs:
        for record in run.attacks:
            if record.failed and isinstance(record.leakage, NotAvailable):
                yield f"{record.label} failed (seed {run.labels.seed}): {record.leakage.reason}"
    yield from _swapped(row_runs)
    for run in row_runs.runs:
        for rebuilt in run.reconstructions:
            if rebuilt.failed and isinstance(rebuilt.result, NotAvailable):
                yield f"{rebuilt.label} failed (seed {run.labels.seed}): {rebuilt.result.reason}"
    yield from _weaker(row_runs, attacked)


def _swapped(row_runs: RowRuns) -> Iterator[str]:
    """Attacks below chance in every seed; among many attacks, a single seed may be below by chance."""
    inverted: dict[str, list[bool]] = {}
    for record in (record for run in row_runs.runs for record in run.attacks):
        if isinstance(record.leakage, Leakage):
            inverted.setdefault(record.label, []).append(record.leakage.inverted)
    yield from (f"{label} {SWAPPED}" for label, seeds in inverted.items() if all(seeds))


def _weaker(row_runs: RowRuns, attacked: frozenset[str]) -> Iterator[str]:
    """Attacks without a number although others on the same target have one: one of them may be the strongest."""
    records = [record for run in row_runs.runs for record in run.attacks]
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
        yield f"the strongest attack was chosen among fewer than in other rows: no number for {', '.join(missing)}"
