"""The table says what the runs say: means over seeds, intervals, the strongest attack, and why a number is missing."""

import math
import os
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from finding_kit import missing
from scipy import stats
from store_kit import (
    HIDDEN,
    attack,
    budget,
    channel,
    labels,
    make_record,
    make_run,
    make_store,
    rebuilt,
    spread_fairness,
)

from app.metrics.membership import NotAvailable
from app.results.comparison.leakage_columns import headline_label
from app.results.comparison.rows import rows_of
from app.results.comparison.tabulate import tabulate
from app.results.run.store import Store, read_store


def store(*runs) -> Store:
    """A collection of these runs."""
    return Store("some", "", tuple(runs), ())


def run(accuracy=0.9, seed=0, defense="none", method="fedavg", dataset="digits", **parts):
    """A run with a chosen accuracy."""
    place = labels(dataset, method, defense, seed)
    final = {"server/accuracy": accuracy, **parts.pop("final", {})}
    return make_record(place, Path(f"runs/{method}-{defense}-{seed}"), final=final, **parts)


def entry(table, key, row=0):
    """An entry of the table."""
    return table.rows[row].values[key]


def marked(table, key, row=0):
    """Marks of an entry."""
    return entry(table, key, row).marks


@pytest.fixture(scope="module")
def planted():
    """The table of the planted comparison."""
    return tabulate(make_store())


def test_rows_are_cells_of_the_matrix_with_all_their_seeds(planted):
    """In the order of the comparison, seeds ascending, runs beside them."""
    assert [row.name for row in planted.rows[:3]] == ["fedavg / none", "fedavg / memdefense", "fedavg / dp-sgd"]
    assert len(planted.rows) == 8
    assert planted.rows[0].seeds == (0, 1, 2)
    assert planted.rows[0].runs == tuple(f"digits-fedavg-none-{seed}" for seed in range(3))


def test_rows_of_one_dataset_stand_together():
    """However the runs are ordered."""
    runs = [run(dataset=dataset, method=method) for method in ("a", "b") for dataset in ("x", "y")]
    assert [(row.dataset, row.method) for row in tabulate(store(*runs)).rows] == [
        *(("x", "a"), ("x", "b")),
        *(("y", "a"), ("y", "b")),
    ]


def test_groups_of_measures_stand_in_their_order(planted):
    """Utility, leakage, formal, cost; the strongest attacks before the single ones."""
    groups = [measure.group for measure in planted.measures]
    assert list(dict.fromkeys(groups)) == ["utility", "leakage", "formal", "cost"]
    assert groups == sorted(groups, key=["utility", "leakage", "formal", "cost"].index)
    keys = [measure.key for measure in planted.measures]
    assert len(set(keys)) == len(keys)
    assert keys.index("global_auc") < keys.index("uploads_auc") < keys.index("auc:yeom.global")
    assert all(measure.meaning for measure in planted.measures)


def test_measures_that_no_run_has_are_no_columns():
    """Without attacks, budgets and fairness there are no such columns, and no ratios without a defense."""
    keys = {measure.key for measure in tabulate(store(run())).measures}
    assert keys == {
        *("server_accuracy", "clients_accuracy", "clients_worst", "clients_own", "train_accuracy", "train_test_gap"),
        *("seconds", "megabytes_up", "megabytes_down"),
    }


def test_three_seeds_have_students_interval():
    """Mean and interval as scipy computes them."""
    values = (0.90, 0.92, 0.97)
    found = entry(tabulate(store(*(run(value, seed) for seed, value in enumerate(values)))), "server_accuracy")
    low, high = stats.t.interval(0.95, 2, fmean(values), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((0.93, low, min(1.0, high)))
    assert found.interval == "seeds"
    assert found.by_seed == dict(enumerate(values))


def test_two_seeds_have_a_huge_interval_and_the_notes_say_so():
    """12.7 standard errors, cut to what an accuracy can be."""
    table = tabulate(store(run(0.5, 0), run(0.52, 1)))
    found = entry(table, "server_accuracy")
    assert (found.low, found.high) == pytest.approx((0.51 - 12.7062 * 0.01, 0.51 + 12.7062 * 0.01), abs=1e-5)
    assert any("two seeds" in note for note in table.notes)
    wide = entry(tabulate(store(run(0.2, 0), run(0.8, 1))), "server_accuracy")
    assert (wide.low, wide.high) == (0.0, 1.0)


@pytest.mark.parametrize(("data", "told"), [({"init_args": {"label_noise": 0.3}}, True), ({}, False), ([1], False)])
def test_wrong_labels_are_mentioned(data, told):
    """Since accuracies are not measured by them."""
    [row] = tabulate(store(run(config={"data": data}))).rows
    said = "30% of the training labels were made wrong; accuracies are measured by the right ones"
    assert (said in row.notes) == told


def test_shadow_models_that_runs_share_are_counted():
    """Over all runs of the comparison; without any, there is no note."""
    first, second = (
        {"attack_phase/shadows_trained": 16.0, "attack_phase/shadows_reused": reused} for reused in (0, 24)
    )
    notes = tabulate(store(run(cost=first), run(defense="memdefense", cost=second))).notes
    assert "32 shadow models trained, 24 reused: runs share those that would be equal." in notes
    assert not any("shadow model" in note for note in tabulate(store(run())).notes)


def test_one_seed_has_the_interval_of_its_samples_or_none():
    """The area has the interval of the attack, the accuracy has none."""
    found = attack("yeom", "global")
    table = tabulate(store(run(attacks=(found,))))
    area = entry(table, "global_auc")
    told = found.leakage.auc
    assert (area.mean, area.low, area.high) == (told.value, told.interval.low, told.interval.high)
    assert area.interval == "samples"
    accuracy = entry(table, "server_accuracy")
    assert accuracy.interval == "none"
    assert math.isnan(accuracy.low)
    assert any("not repeated training" in note for note in table.notes)


def test_values_that_no_seed_changes_have_no_interval():
    """An interval of width 0 would claim what nobody knows."""
    found = entry(tabulate(store(*(run(0.9, seed) for seed in range(3)))), "server_accuracy")
    assert (found.mean, found.interval) == (0.9, "none")


def test_accuracies_are_read_where_they_belong():
    """Every column its own number, fractions unscaled, variances in squared points."""
    final = {
        "clients/received_common/mean": 0.81,
        "clients/received_common/worst": 0.71,
        "server/train_accuracy": 0.99,
    }
    table = tabulate(store(run(0.9, final=final, fairness=spread_fairness(0.9, 0.7))))
    expected = {
        **{"server_accuracy": 0.9, "clients_accuracy": 0.81, "clients_worst": 0.71, "train_accuracy": 0.99},
        **{"train_test_gap": 0.09, "everyone_accuracy": 0.8, "everyone_worst": 0.68, "everyone_majority": 0.9},
        **{"everyone_minority": 0.7, "everyone_gap": 0.2, "everyone_variance": 104.0},
    }
    assert {key: entry(table, key).mean for key in expected} == pytest.approx(expected)
    assert "clients_own" not in {measure.key for measure in table.measures}


def test_numbers_that_are_not_finite_are_missing():
    """A run that diverged has no accuracy; others of the row do."""
    table = tabulate(store(run(math.nan, 0), run(0.8, 1), run(math.nan, 0, "l2"), run(math.inf, 1, "l2")))
    assert entry(table, "server_accuracy").by_seed == {1: 0.8}
    assert "server: no number for seed 0" in table.rows[0].notes
    assert entry(table, "server_accuracy", 1) == NotAvailable("the number is not finite")


def test_the_headline_is_the_attack_of_the_largest_mean():
    """Not the luckiest of every seed."""
    steady = [attack("steady", "uploads", 1.0, seed) for seed in range(2)]
    moody = [attack("moody", "uploads", distance, 10 + seed) for seed, distance in enumerate((1.6, 0.0))]
    runs = [run(seed=seed, attacks=(steady[seed], moody[seed])) for seed in range(2)]
    areas = [[each.leakage.auc.value for each in found] for found in (steady, moody)]
    assert areas[1][0] > areas[0][0]  # the moody one wins the first seed
    assert fmean(areas[0]) > fmean(areas[1])
    table = tabulate(store(*runs))
    assert marked(table, "uploads_auc") == ("steady",)
    assert entry(table, "uploads_auc").by_seed == dict(enumerate(areas[0]))
    assert any("luckiest" in note for note in table.notes)


def test_an_attack_of_fewer_seeds_is_no_headline():
    """One lucky seed does not win against attacks that ran on all of them."""
    runs = [run(seed=seed, attacks=(attack("both", "global", 0.5, seed),)) for seed in range(2)]
    lucky = run(seed=0, attacks=(attack("both", "global", 0.5, 0), attack("once", "global", 3.0, 0)))
    assert headline_label(rows_of([lucky, runs[1]])[0], "global") == "both.global"


def test_attackers_who_know_the_defense_are_marked(planted):
    """The refilled uploads of the planted MemDefense leak more than the plain ones."""
    assert marked(planted, "uploads_auc", 0) == ("lira-online",)
    assert marked(planted, "uploads_auc", 1) == ("lira-online", "adaptive")
    assert entry(planted, "uploads_auc", 1).mean == entry(planted, "auc:lira-online.uploads+refilled", 1).mean


def test_rates_are_those_of_the_headline():
    """TPR at 1 % of the strongest attack; 0.1 % is refused with too few non-members, and nowhere a column."""
    strong, weak = attack("strong", "global", 2.0), attack("weak", "global", 0.1)
    table = tabulate(store(run(attacks=(strong, weak))))
    told = next(each for each in strong.leakage.tpr if getattr(each, "target", None) == 0.01)
    assert entry(table, "global_tpr1").mean == told.decision.tpr
    assert "global_tpr01" not in {measure.key for measure in table.measures}
    large = attack("large", "global", 2.0, rows=600)
    both = tabulate(store(run(attacks=(strong,)), run(defense="l2", attacks=(large,))))
    assert entry(both, "global_tpr01", 0) == NotAvailable(
        "TPR at 0.001 FPR needs at least 1000 non-members, there are 200"
    )
    assert entry(both, "global_tpr01", 1).mean > 0


def test_hidden_views_are_never_numbers(planted):
    """Where a defense hides what an attack reads, the reason stands in its place."""
    for key in ("uploads_auc", "uploads_tpr1", "auc:yeom.uploads", "recovered_share"):
        assert entry(planted, key, 3) == NotAvailable(HIDDEN), key
    assert entry(planted, "global_auc", 3).mean > 0.5


def test_attacks_that_were_not_run_say_so():
    """One row attacked, one not."""
    table = tabulate(store(run(attacks=(attack(),), reconstructions=(rebuilt(),)), run(defense="l2")))
    for key in ("global_auc", "auc:yeom.global", "recovered_share"):
        assert entry(table, key, 1) == NotAvailable("not run"), key


def test_failed_attacks_are_noted_and_explain_a_weak_headline():
    """A strongest attack of fewer rivals is told to be one."""
    broken = missing("lira-online", "global", "the shadows diverged", failed=True)
    table = tabulate(store(run(attacks=(attack(), broken))))
    assert marked(table, "global_auc") == ("yeom",)
    assert "lira-online.global failed (seed 0): the shadows diverged" in table.rows[0].notes
    assert any("no number for lira-online.global" in note for note in table.rows[0].notes)


def test_attacks_below_chance_in_every_seed_are_noted():
    """A single one among several seeds is there by chance."""
    below = [run(seed=seed, attacks=(attack(distance=-2, seed=seed),)) for seed in range(3)]
    assert any("probably swapped" in note for note in tabulate(store(*below)).rows[0].notes)
    mixed = tabulate(store(*below[:2], run(seed=2, attacks=(attack(distance=1, seed=2),))))
    assert not any("swapped" in note for note in mixed.rows[0].notes)


def test_rows_attacked_with_less_than_others_say_so():
    """Attackers who know the defense are expected nowhere else."""
    adapted = attack("yeom", "global", 1.0, 0, "refilled")
    rows = tabulate(
        store(run(attacks=(attack(), attack("lira", "global"))), run(defense="l2", attacks=(attack(), adapted)))
    ).rows
    assert not any("fewer" in note for note in rows[0].notes)
    assert any("no number for lira.global" in note for note in rows[1].notes)


def test_inverted_areas_are_noted():
    """An area below chance is no privacy."""
    (row,) = tabulate(store(run(attacks=(attack(distance=-2.0),)))).rows
    assert any("below chance" in note for note in row.notes)


def test_reconstruction_is_the_share_recovered():
    """The strongest of several, each also by itself, with Wilson's interval for one run."""
    two = (rebuilt(4, label="rolling"), rebuilt(2, label="trap"))
    table = tabulate(store(run(reconstructions=two)))
    found = entry(table, "recovered_share")
    assert (found.mean, found.marks, found.interval) == (0.5, ("rolling",), "samples")
    assert entry(table, "recovered:trap").mean == 0.25
    assert "recovered:rolling" not in {
        measure.key for measure in tabulate(store(run(reconstructions=two[:1]))).measures
    }


def test_recovered_shares_that_no_seed_changes_are_compared_by_images():
    """All of 24 images against none differ beyond chance: p = 2 / C(48, 24)."""
    runs = [
        run(seed=seed, defense=defense, reconstructions=(rebuilt(count),))
        for defense, count in (("none", 8), ("l2", 0))
        for seed in range(3)
    ]
    table = tabulate(store(*runs))
    assert [entry(table, "recovered_share", row).standing for row in (0, 1)] == ["worse", "best"]
    assert any("Fisher" in note for note in table.notes)


def test_budgets_tell_unit_and_whether_they_are_nominal():
    """Proven promises before nominal ones, whatever their epsilon; units stand beside the number."""
    runs = [
        run(),
        run(defense="a", budgets=(budget(3.0, "client"),)),
        run(defense="b", budgets=(budget(2.0, nominal=True), budget(8.0))),
        run(defense="c", budgets=(budget(30.0, nominal=True, mechanism="NbAFL"),)),
        run(defense="d", budgets=(budget(math.inf),)),
    ]
    table = tabulate(store(*runs))
    assert entry(table, "epsilon", 0) == NotAvailable("no formal guarantee")
    told = [(entry(table, "epsilon", row).mean, marked(table, "epsilon", row)) for row in (1, 2, 3)]
    assert told == [(3.0, ("client",)), (8.0, ("sample",)), (30.0, ("sample", "nominal"))]
    assert "infinite" in entry(table, "epsilon", 4).reason
    assert entry(table, "epsilon", 1).standing == "unknown"
    assert any(note.startswith("NbAFL: nominal epsilon 30 at delta 1e-05") for note in table.rows[3].notes)


def test_costs_are_per_round_and_client_and_ratios_pair_seeds():
    """Ratios to the same method, dataset and seed without a defense."""
    seconds = {("none", 0): 1.0, ("none", 1): 2.0, ("l2", 0): 3.0, ("l2", 1): 4.0, ("l2", 2): 5.0}
    runs = [
        run(seed=seed, defense=defense, cost={"seconds_per_round": each}) for (defense, seed), each in seconds.items()
    ]
    table = tabulate(store(*runs, run(method="heterofl", defense="l2")))
    assert entry(table, "seconds_ratio", 1).by_seed == {0: 3.0, 1: 2.0}
    assert entry(table, "seconds_ratio", 0).mean == 1.0
    assert entry(table, "seconds_ratio", 2) == NotAvailable("there is no run of this method without a defense")
    assert entry(table, "seconds", 1).mean == 4.0
    assert (entry(table, "megabytes_up").mean, entry(table, "megabytes_down").mean) == (2.0, 4.0)


def loaded(cpu, wall=2.0, **labels):
    """A run with these seconds per round."""
    return run(cost={"seconds_per_round": wall, "cpu_seconds_per_round": cpu}, **labels)


def test_cpu_seconds_stand_beside_wall_clock_seconds():
    """Runs of earlier versions have none, and are still shown."""
    table = tabulate(store(loaded(1.5), run(defense="l2", cost={"seconds_per_round": 7.0})))
    assert entry(table, "cpu_seconds", 0).mean == 1.5
    assert isinstance(entry(table, "cpu_seconds", 1), NotAvailable)
    assert entry(table, "seconds", 1).mean == 7.0
    assert not any("wall-clock seconds are not comparable" in note for note in table.notes)


def test_unequal_load_between_runs_is_said():
    """The same work in CPU seconds, but one seed of a row waited three times as long for it."""
    runs = [
        loaded(2.0),
        loaded(2.0, seed=1),
        loaded(3.0, defense="l2", wall=3.2),
        loaded(3.0, 9.0, defense="l2", seed=1),
    ]
    [note] = [note for note in tabulate(store(*runs)).notes if "not comparable" in note]
    assert "between 1 (fedavg / none, seed 0) and 3 (fedavg / l2, seed 1)" in note
    equal = tabulate(store(*runs[:3]))
    assert not any("not comparable" in note for note in equal.notes)


def test_datasets_are_not_compared_for_their_load():
    table = tabulate(store(loaded(2.0), loaded(0.2, dataset="other")))
    assert not any("not comparable" in note for note in table.notes)


def test_a_clients_slowdown_is_that_of_its_own_seconds():
    """Evaluation makes rounds equally long, and yet the client works twice as long; earlier runs did not measure it."""
    own = {"none": 1.0, "memdefense": 2.0}
    measured = {
        defense: {"seconds_per_round": 60.0, "own_seconds_per_client_round": each} for defense, each in own.items()
    }
    table = tabulate(store(*(run(defense=defense, cost=cost) for defense, cost in measured.items()), run(defense="l2")))
    assert [entry(table, "client_ratio", row).mean for row in (0, 1)] == [1.0, 2.0]
    assert entry(table, "seconds_ratio", 1).mean == 1.0
    assert isinstance(entry(table, "client_ratio", 2), NotAvailable)


def test_a_seed_without_an_undefended_twin_has_no_ratio():
    """Other seeds are no twins."""
    table = tabulate(store(run(seed=0), run(seed=1, defense="l2")))
    assert entry(table, "seconds_ratio", 1) == NotAvailable("there is no run of the same seed without a defense")


def test_bytes_are_compared_exactly_and_equal_ones_are_alike():
    """A difference that no seed changes is none of chance where it is counted."""
    runs = [
        run(seed=seed, defense=defense, cost={"bytes/up": size * 12e6})
        for defense, size in (("none", 1), ("l2", 1), ("paillier", 9))
        for seed in range(2)
    ]
    table = tabulate(store(*runs))
    found = [[entry(table, f"megabytes_{way}", row).standing for row in range(3)] for way in ("up", "down")]
    assert found == [["indistinguishable", "indistinguishable", "worse"], ["indistinguishable"] * 3]


def test_planted_differences_have_their_standings(planted):
    """DP-SGD costs accuracy and time beyond chance; nothing is best where equal rows exist."""
    accuracy = {row.name: row.values["server_accuracy"].standing for row in planted.rows}
    assert accuracy["fedavg / dp-sgd"] == accuracy["heterofl / dp-sgd"] == "worse"
    assert accuracy["fedavg / none"] == accuracy["fedavg / secure-aggregation"] == "indistinguishable"
    assert entry(planted, "seconds", 2).standing == "worse"
    assert entry(planted, "everyone_gap").standing == "unknown"


def test_datasets_are_compared_within_themselves():
    """The best of a hard dataset is best although an easy one has better numbers."""
    levels = {("hard", "none"): 0.5, ("hard", "l2"): 0.4, ("easy", "none"): 0.8, ("easy", "l2"): 0.9}
    runs = [
        run(level + 0.001 * seed * (1 + (place[1] == "l2")), seed, place[1], dataset=place[0])
        for place, level in levels.items()
        for seed in range(4)
    ]
    found = {(row.dataset, row.defense): row.values["server_accuracy"].standing for row in tabulate(store(*runs)).rows}
    assert found == {place: "best" if place in (("hard", "none"), ("easy", "l2")) else "worse" for place in levels}


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_compare_areas_by_their_scores_and_nothing_else(seeds):
    """Far apart: worse and best; alike: indistinguishable; accuracies stay unknown."""
    distances = {"none": 2.0, "l2": 0.0, "mixup": 2.0}
    runs = [
        run(0.5 + 0.1 * place, seed, defense, attacks=(attack("yeom", "global", distance, 10 * place + seed),))
        for place, (defense, distance) in enumerate(distances.items())
        for seed in range(seeds)
    ]
    table = tabulate(store(*runs))
    assert [entry(table, "global_auc", row).standing for row in range(3)] == ["worse", "best", "worse"]
    assert {entry(table, "server_accuracy", row).standing for row in range(3)} == {"unknown"}
    assert any("paired bootstrap" in note for note in table.notes)
    alike = tabulate(store(*(each for each in runs if each.labels.defense != "l2")))
    assert [entry(alike, "global_auc", row).standing for row in (0, 1)] == ["indistinguishable"] * 2


def test_scores_of_other_samples_are_not_compared():
    """Without the same audited samples a single seed says nothing, and neither do lost scores."""
    one, two = attack("yeom", "global", 2.0), attack("yeom", "global", 0.0, rows=80)
    table = tabulate(store(run(attacks=(one,)), run(defense="l2", attacks=(two,))))
    assert [entry(table, "global_auc", row).standing for row in (0, 1)] == ["unknown"] * 2


def test_lost_scores_leave_the_standing_unknown(tmp_path):
    """The table is made all the same."""
    for place, distance in ((labels(), 2.0), (labels(defense="l2"), 0.0)):
        make_run(tmp_path / place.defense, place, attacks=(attack("yeom", "global", distance),))
    (tmp_path / "l2" / "attacks" / "yeom.global.npz").write_bytes(b"")
    table = tabulate(read_store([tmp_path]))
    assert {entry(table, "global_auc", row).standing for row in (0, 1)} == {"unknown"}
    assert any("scores are lost" in note for row in table.rows for note in row.notes)


def test_of_two_runs_in_one_place_the_newer_counts(tmp_path):
    """The other one is named, with the settings in which they differ."""
    old = make_run(tmp_path / "old", final={"server/accuracy": 0.1}, config={"trainer": {"max_epochs": 3}})
    new = make_run(tmp_path / "new", final={"server/accuracy": 0.8}, config={"trainer": {"max_epochs": 9}})
    os.utime(old / "summary.json", (1000, 1000))
    os.utime(new / "summary.json", (2000, 2000))
    table = tabulate(read_store([tmp_path]))
    assert entry(table, "server_accuracy").mean == 0.8
    (note,) = table.rows[0].notes
    assert note.startswith("old is left out: new has the same")
    assert note.endswith("their settings differ in trainer.max_epochs")


def test_what_matters_is_noted_beside_the_row():
    """Simulated channels, accepted leaks, files that were lost, seeds that others have."""
    runs = [run(seed=seed) for seed in range(2)]
    told = run(defense="secagg", channels=(channel(simulated=True, accepted=["client 3 is alone"]),))
    rows = tabulate(store(*runs, replace(told, notes=("metrics.jsonl is empty",)))).rows
    assert rows[0].notes == ()
    assert set(rows[1].notes) == {
        "has no run of seed 1, which other rows have",
        "fedavg-secagg-0: metrics.jsonl is empty",
        "secure aggregation was simulated: the same numbers without cryptography, its cost extrapolated",
        "leaks of the plan were accepted: client 3 is alone",
    }


def test_an_empty_collection_is_an_empty_table():
    """No rows, no columns, no notes."""
    table = tabulate(store())
    assert (table.measures, table.rows, table.notes) == ((), (), ())
