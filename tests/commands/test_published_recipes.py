"""Comparisons that repeat published tables: they can be run as they are, and hold what the papers print."""

from collections import defaultdict
from functools import cache

import pytest
from published_values import GLOBAL, LOCAL, MEAN, VALUES
from run_kit import exit_code, train

from app.commands.fit import fit
from app.experiments.matrix import planned_runs
from app.experiments.parsing import parse_all
from app.experiments.reading import find_scale, read_spec
from app.recipes import find_recipe, shipped_comparisons
from app.results.attacks.membership import AttackRecord
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.published.parse import parse_published
from app.results.published.values import ALL_METHODS

FAMILIES = {"mapp-fl": 5, "taxonomy": 8, "waffle": 9, "memdefense": 5, "breaking": 3}
"""Files of every paper."""

NAMES = [one.name for one in shipped_comparisons() if one.name.startswith(tuple(FAMILIES))]


@cache
def spec_of(name):
    """A comparison, read once."""
    return read_spec(name)


@cache
def figures_of(name):
    """What it knows as published."""
    return parse_published(spec_of(name).published)


def numbers(name):
    """Its numbers by place, measure and client; several are left out where a bound and a value stand for one thing."""
    return {(*each.place, each.measure, each.client): each.value for each in figures_of(name) if each.relation == "is"}


def test_every_table_has_a_file():
    """As many as the papers have, and their names tell which."""
    for family, count in FAMILIES.items():
        assert sum(name.startswith(family) for name in NAMES) == count, family


@pytest.mark.parametrize("name", NAMES)
def test_file_is_understood(name):
    """The comparison is read without a problem, says what it is, names recipes that exist, and can be made quickly."""
    spec = spec_of(name)
    assert spec.purpose.endswith(".")
    assert len(spec.purpose) <= 118
    entries = [entry for axis in (spec.datasets, spec.methods, spec.defenses) for entry in axis]
    for recipe in [*spec.base, *spec.attacks, *(config for entry in entries for config in entry.configs)]:
        assert find_recipe(recipe).is_file()
    full, quick = (find_scale(spec, scale) for scale in ("full", "quick"))
    assert spec.at_scale(full) == spec
    assert len(quick.seeds) < len(spec.seeds)
    assert spec.at_scale(quick).name == f"{name}-quick"


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_belong_to_runs(name):
    """Every number stands beside a run that the comparison makes, and is told once."""
    figures, runs = figures_of(name), {planned.combination for planned in planned_runs(spec_of(name))}
    assert figures
    pooled = {(dataset, ALL_METHODS, defense) for dataset, _, defense in runs}
    assert {figure.place for figure in figures} <= runs | pooled
    keys = [(*each.place, each.measure, each.client, each.relation, each.statistic) for each in figures]
    assert len(keys) == len(set(keys))
    assert all(figure.where.startswith(("Table ", "Figure ")) for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_are_understood_by_the_program(name):
    """The parser of `rampart fit` takes the first run as published, and the last one in short."""
    spec = spec_of(name)
    quick = spec.at_scale(find_scale(spec, "quick"))
    assert len(parse_all([planned_runs(spec)[0]])) == len(parse_all([planned_runs(quick)[-1]])) == 1


@pytest.mark.parametrize(("name", "dataset", "method", "defense", "measure", "client", "value", "spread"), VALUES)
def test_value_is_that_of_the_paper(name, dataset, method, defense, measure, client, value, spread):
    """Written down a second time, independently of the files."""
    place = (dataset, method, defense)
    [found] = [
        figure
        for figure in figures_of(name)
        if (figure.place, figure.measure, figure.client) == (place, measure, client)
    ]
    assert (found.value, found.spread) == (value, spread)


def test_table_two_of_mapp_fl_is_complete():
    """Ten clients under three methods, eight of them trained locally, and three servers; sums of the columns."""
    found = numbers("mapp-fl-table-2")
    local = [value for key, value in found.items() if key[1] == "local-30k"]
    assert len(local) == 8
    assert sum(local) == pytest.approx(423.27)
    accuracies = [value for key, value in found.items() if key[1] == "mapp-fl" and key[3] == "clients_accuracy"]
    assert sum(accuracies) == pytest.approx(77.14 * 2 + 66.30 * 3 + 63.95 + 65.84 * 2 + 68.48 * 2)


@pytest.mark.parametrize("table", [7, 8, 9])
def test_means_of_three_attacks(table):
    """The printed averages are those of the printed attacks, to the last digit but one."""
    name = f"taxonomy-table-{table}"
    found, checked = numbers(name), 0
    for figure in ("AUC %", "Adv %", "TPR % at 0.1 % FPR"):
        for place in {key[:3] for key in found}:
            parts = [
                found[*place, f"paper:taxonomy.{attack}.uploads/{figure}", None] for attack in ("tmia", "lira", "yeom")
            ]
            printed = found[*place, MEAN.format(figure), None]
            assert printed == pytest.approx(sum(parts) / 3, abs=0.0151), (place, figure)
            checked += 1
    assert checked == 3 * 29


def test_ranges_of_the_taxonomy():
    """Ends of Table 3 are the extremes of Tables 8 and 9, but for the three lower ends that carry a remark."""
    slips = 0
    for figure in figures_of("taxonomy-table-3"):
        table, large = {"cifar10": 8, "cifar100": 9}[figure.dataset], figure.method.split("-", 1)[1].split("-")[-2]
        others = numbers(f"taxonomy-table-{table}")
        row = [
            value for key, value in others.items() if key[1].endswith(f"-{large}-large") and key[3] == figure.measure
        ]
        assert others[*figure.place, figure.measure, None] == figure.value
        extreme = (min if figure.where.endswith("lowest") else max)(row)
        if extreme != figure.value:
            slips += 1
            assert f"{extreme:.2f}" in figure.remark
    assert slips == 3


def test_both_papers_print_the_same():
    """MaPP-FL's Tables 3 and 6 are the taxonomy's Tables 5 and 4."""
    for one, other in (("mapp-fl-table-3", "taxonomy-table-5"), ("mapp-fl-table-6", "taxonomy-table-4")):
        assert numbers(one) == numbers(other)


def test_correlations_of_the_taxonomy():
    """Three pairs of attacks under three metrics, read off Table 2 a second time; AUC correlates most, as it says."""
    printed = {"tmia~lira": (0.83, 0.70, 0.00), "tmia~yeom": (0.98, 0.78, 0.46), "lira~yeom": (0.85, 0.68, 0.02)}
    found = numbers("taxonomy-table-2")
    assert len(found) == 9
    for pair, values in printed.items():
        first, second = pair.split("~")
        for metric, value in zip(("AUC %", "Adv %", "TPR % at 0.1 % FPR"), values, strict=True):
            measure = f"correlation:taxonomy.{first}.uploads~taxonomy.{second}.uploads/{metric}"
            assert found["cifar10", ALL_METHODS, "none", measure, None] == value


def test_gaps_of_waffle():
    """Majority less minority is the printed gap to the last digit, but for CIFAR-10 under FedProx, which says so."""
    found = numbers("waffle-table-2")
    wrong = []
    for place in {key[:3] for key in found}:
        majority, minority, gap = (found[*place, f"everyone_{what}", None] for what in ("majority", "minority", "gap"))
        if abs(majority - minority - gap) > 0.0151:
            wrong.append(place)
    assert wrong == [("cifar10-multimodal", "fedprox", "none")]
    [slip] = [
        each for each in figures_of("waffle-table-2") if each.place == wrong[0] and each.measure == "everyone_gap"
    ]
    assert (slip.value, "34.70" in slip.remark) == (32.70, True)


def test_means_of_waffle():
    """Majority and minority, weighted by clients, give Table 1; on FashionMNIST they do not, where a remark says so."""
    clients = {"mnist": (100, 20), "fashionmnist": (90, 20), "cifar10": (90, 20)}
    groups, whole = numbers("waffle-table-2"), numbers("waffle-table-1")
    remarks = {each.place for each in figures_of("waffle-table-1") if each.remark}
    for place in {key[:3] for key in groups}:
        majority, minority = clients[place[0].removesuffix("-multimodal")]
        total = (
            majority * groups[*place, "everyone_majority", None] + minority * groups[*place, "everyone_minority", None]
        )
        distance = abs(total / (majority + minority) - whole[*place, "everyone_accuracy", None])
        assert (distance > 1) == (place in remarks), (place, distance)
    assert {place[0] for place in remarks} == {"fashionmnist-multimodal"}


def test_leads_of_waffle_shrink_with_more_classes():
    """Figure 7 beside Table 1: 18.76 points with two classes per client, then 7.20 and 2.74."""
    two = numbers("waffle-table-1")
    lead = two["cifar10", "waffle-lenet", "none", "everyone_accuracy", None]
    lead -= two["cifar10", "fedavg", "none", "everyone_accuracy", None]
    more = [figure.value for figure in figures_of("waffle-figure-7")]
    assert [pytest.approx(lead), *more] == [18.76, 7.20, 2.74]
    assert {figure.measure for figure in figures_of("waffle-figure-7")} == {"lead:fedavg/everyone_accuracy"}


def test_tables_of_memdefense():
    """Tables IV and VI agree at 20 clients, but for one number that both have a remark on."""
    four, six = numbers("memdefense-table-iv"), numbers("memdefense-table-vi")
    shared = {(f"{key[0]}-20", *key[1:]): value for key, value in four.items() if key[2] in ("none", "memdefense")}
    differing = [key for key, value in shared.items() if six[key] != value]
    assert len(shared) == 32
    assert differing == [("cifar100-20", "fedavg", "none", LOCAL, None)]
    for name in ("memdefense-table-iv", "memdefense-table-vi"):
        [slip] = [each for each in figures_of(name) if each.remark and each.measure == LOCAL]
        assert slip.dataset.startswith("cifar100")


def test_local_accuracies_of_memdefense_are_counts():
    """Half of a client's samples and as many others are evaluated: multiples of 1/2500 or 1/3000 with 20 clients."""
    images = {"cifar10": 50_000, "cifar100": 50_000, "mnist": 60_000, "fashionmnist": 60_000}
    checked = 0
    for name in ("memdefense-table-iv", "memdefense-table-vi"):
        for figure in figures_of(name):
            if figure.measure == LOCAL:
                dataset, _, clients = figure.dataset.partition("-")
                evaluated = images[dataset] // int(clients or 20)
                right = figure.value / 100 * evaluated
                assert abs(right - round(right)) <= evaluated * 0.00005 + 1e-9, figure
                checked += 1
    assert checked == 20 + 24


def test_encryption_changes_nothing_but_luck():
    """The noise floor of MemDefense's Table IV: 3.13 points between two rows of one model."""
    found = numbers("memdefense-table-iv")
    apart = defaultdict(float)
    for dataset in ("cifar10", "cifar100", "mnist", "fashionmnist"):
        plain, hidden = (found[dataset, "fedavg", defense, GLOBAL, None] for defense in ("none", "paillier"))
        apart[dataset] = abs(plain - hidden)
    assert max(apart.values()) == pytest.approx(3.13)


def test_changes_of_the_taxonomy_are_small():
    """FedProx has no effect in the paper's code: its rows lie within 3.2 points of Table 7."""
    plain, changed = numbers("taxonomy-table-7"), numbers("taxonomy-table-6")
    for (dataset, method, defense, measure, client), value in changed.items():
        base = method.rsplit("-", 1)[0]
        before = plain[dataset, base if base.startswith("fedavg") else f"{base}-2-large", defense, measure, client]
        assert abs(value - before) <= 3.17, method


@pytest.mark.parametrize("images", [5, 10, 15, 20])
def test_averages_of_the_rolling_attack_are_halved(images):
    """Half of the published trials compare with another client and recover nothing: the average is half the truth."""
    told = {
        (each.measure, each.where.rpartition(", ")[2]): each.value
        for each in figures_of("breaking-figures-4-to-8")
        if each.dataset == f"mnist-{images}" and each.relation == "is" and each.statistic == "mean"
    }
    average = told["reconstruction:details/legacy_recovered", "average"]
    assert average == pytest.approx(told["reconstruction:recovered", "right client"] / 2, abs=0.0051)


PROTOCOLS = {
    "mapp-fl": ("--protocol", "mapp-fl"),
    "taxonomy": (
        *("--protocol", "Taxonomy", "--protocol.shadows", "2", "--protocol.shadow_epochs", "1"),
        *("--protocol.student_epochs", "1", "--protocol.attack_epochs", "1"),
    ),
    "memdefense": ("--protocol", "MemDefensePaper", "--protocol.clients", "1", "--protocol.settings.epochs", "1"),
    "waffle": ("--protocol", "WafflePaper", "--protocol.shadows", "1", "--protocol.clients", "1"),
}
"""Every paper's evaluation, as short as it can be."""


def asked_for(front):
    """Every measure with this beginning that any file compares with."""
    return {each.measure for name in NAMES for each in figures_of(name) if each.measure.startswith(front)}


def test_figure_three_of_waffle_compares_what_inversions_measure():
    """The paper has images only: the signs of two numbers that the attack records."""
    assert asked_for("lead:waffle-convnet") == {
        f"lead:waffle-convnet/reconstruction:details/{name}" for name in ("to_class_mean", "recognised")
    }
    assert {(figure.value, figure.relation) for figure in figures_of("waffle-figure-3")} == {(0, "above")}


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_every_paper_number_exists(tmp_path, monkeypatch):
    """What the files compare with is what the papers' evaluations of a real run give, by the same names."""
    monkeypatch.setattr("app.attacks.protocols.mapp_fl.SMALLEST_CLIENT", 10)  # clients of the digits are small
    monkeypatch.setattr("app.attacks.protocols.mapp_fl.SERVER_KNOWLEDGE", 20)
    sizes = ("--data.partition", "DirichletSizes", "--data.partition.clients", "6", "--data.partition.alpha", "8")
    run = train(tmp_path, "attacked", *sizes, rounds=1)
    for options in PROTOCOLS.values():
        assert exit_code("attack", str(run), *options) == 0
    records = AttackRecord.load_all(run)
    found = {f"paper:{record.label}/{figure.name}" for record in records for figure in record.figures}
    assert asked_for("paper:") - found == set()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_every_number_of_a_reconstruction_exists(tmp_path):
    """The same for images that came back."""
    options = ("--run.root", str(tmp_path), "--run.name", "deceived", "--tracking", "disabled")
    assert fit(["--config", "deceived", "--attacks.server.score", "legacy", *options]) == 0
    [record] = ReconstructionRecord.load_all(tmp_path / "deceived")
    assert asked_for("reconstruction:") - {f"reconstruction:{name}" for name in record.numbers} == set()
