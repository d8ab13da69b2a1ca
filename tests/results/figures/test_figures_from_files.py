"""Figures from files of the runs: partition, contributors, images, representations; and what defenses cost."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from figure_kit import clashes, data_of, figures, panels, table_of, texts, value
from finding_kit import finding
from run_kit import train
from store_kit import labels, make_record, make_store, rebuilt

from app.attacks.reconstruction.base import ImagePairs, Truth
from app.federation.channels.base import Message
from app.federation.transcript import Transcript
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import score_reconstruction
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.attacks.representation_files import AttackRepresentations, RepresentedSamples
from app.results.figures.cost import bytes_ratios, cost
from app.results.figures.coverage import contributors, contributors_of
from app.results.figures.data import FigureData
from app.results.figures.partition import heatmap, read_partition
from app.results.figures.reconstructions import reconstructions, recovery_text
from app.results.figures.tsne import embedded, tsne
from app.results.run.store import Store

COUNTS = [[5, 0, 1], [0, 7, 2]]


def store_of(*runs):
    """A store of some runs, the plain one its baseline."""
    return Store("x", "", runs, (), ("fedavg", "none"))


def folder_of(tmp_path, name="run"):
    """A folder of a run."""
    path = tmp_path / name
    path.mkdir()
    return path


def write_partition(folder, text=None):
    """Two clients with three classes."""
    lines = [f"{client},{sum(row)},{','.join(map(str, row))},all,{client}" for client, row in enumerate(COUNTS)]
    (folder / "partition.csv").write_text(text or "\n".join(["client,size,0,1,2,group,name", *lines]) + "\n")


def test_heatmap_cells_are_the_table(tmp_path):
    """Counts as colours and as numbers, sizes as bars."""
    path = folder_of(tmp_path)
    write_partition(path)
    [figure] = figures(heatmap, data_of(store_of(make_record(labels(), path))))
    cells, bars = panels(figure)
    assert cells.images[0].get_array().tolist() == COUNTS
    numbers = {text.get_position(): text.get_text() for text in cells.texts}
    assert numbers == {(column, row): str(COUNTS[row][column]) for row in range(2) for column in range(3)}
    assert [bar.get_width() for bar in bars.patches] == [6, 9]
    assert clashes(figure) == []


@pytest.mark.parametrize("text", ["", "client,size\n", "client,size,0\n0,many,1\n"])
def test_broken_partition_is_no_figure(tmp_path, text):
    """A file that cannot be read is as good as none."""
    path = folder_of(tmp_path)
    (path / "partition.csv").write_text(text)
    assert read_partition(path / "partition.csv") is None
    assert figures(heatmap, data_of(store_of(make_record(labels(), path)))) == []


def write_plan(folder, indices, outputs=4, inputs=3):
    """A round in which every client trains the cells of its index, None for all; one bias before the matrix."""
    cells = 2 + outputs * inputs
    layers = [{"name": "hidden.weight", "shape": [outputs, inputs], "start": 2}]
    rates = [1.0 if index is None else 0.5 for index in indices]
    (folder / "plan.json").write_text(json.dumps({"capacities": rates, "cells": cells, "layers": layers}))
    transcript = Transcript(folder / "transcript")
    for client, index in enumerate(indices):
        chosen = torch.arange(cells) if index is None else torch.tensor(index)
        transcript.record_message(Message(client, 6, chosen, torch.zeros(len(chosen)), "plain", 0), cells)
    transcript.finish(7)


def test_contributors_are_counted_cell_by_cell(tmp_path):
    """Two clients: everything, and the first two outputs of the first input."""
    path = folder_of(tmp_path)
    write_plan(path, [None, [0, 2, 5]])
    [found] = contributors_of("heterofl", path).values()
    assert found.round == 7
    assert found.counts.tolist() == [[2, 1, 1], [2, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert found.outputs.tolist() == [[1.0] * 4, [0.5, 0.5, 0, 0]]
    [figure] = figures(contributors, data_of(store_of(make_record(labels(method="heterofl"), path))))
    counts = next(axes for axes in panels(figure) if axes.images[0].get_gid() == "counts")
    assert counts.images[0].get_array().tolist() == found.counts.tolist()
    assert clashes(figure) == []


def test_contributors_of_a_real_run(tmp_path, no_figures):
    """Two wide and two half-width clients under HeteroFL: all four train the first half, two the rest."""
    options = ("--model.net.hidden", "[8, 6]", "--model.capacities", "[1.0, 0.5, 0.5, 1.0]")
    found = contributors_of("heterofl", train(tmp_path, "x", *options, rounds=1))
    middle = next(one for one in found.values() if one.counts.shape == (6, 8))
    expected = np.full((6, 8), 2)
    expected[:3, :4] = 4
    np.testing.assert_array_equal(middle.counts, expected)
    assert middle.clients == (0, 1, 2, 3)


def test_contributors_of_equal_clients_are_no_figure(tmp_path):
    """Where everybody trains everything there is nothing to see; nor without a plan or with a broken one."""
    path = folder_of(tmp_path)
    write_plan(path, [None, None])
    store = store_of(make_record(labels(), path))
    assert figures(contributors, data_of(store)) == []
    (path / "plan.json").write_text("{")
    assert contributors_of("x", path) == {}
    assert contributors_of("x", tmp_path / "absent") == {}


def images_of(recovered, of=12):
    """A finding with images, of which so many came back exactly, and one did not come back at all."""
    source = torch.Generator().manual_seed(3)
    images, noise = torch.rand(2, of, 1, 4, 4, generator=source)
    found = torch.where((torch.arange(of) < recovered).view(-1, 1, 1, 1), images, noise)
    keys = [(0, row, row % 3) for row in range(of)]
    result = score_reconstruction(images, keys, found, torch.arange(of), {})
    found = found.clone()
    found[-1] = float("nan")
    ids = torch.arange(of)
    truth = Truth(images, torch.zeros(of, dtype=torch.long), ids, ids % 3)
    return replace(rebuilt(recovered, of), result=result, pairs=ImagePairs(truth, found))


def test_images_are_shown_in_pairs(tmp_path):
    """At most ten, the most alike first, frames round those that were recovered, and the share over all."""
    path, finding = folder_of(tmp_path), images_of(3)
    ReconstructionRecord.of(finding).save(path)
    run = make_record(labels(), path, reconstructions=(finding,))
    hidden = make_record(labels(defense="masks"), tmp_path / "other", reconstructions=(rebuilt(None),))
    [figure] = figures(reconstructions, data_of(store_of(run, hidden)))
    [axes] = panels(figure)
    shown = [image.get_array() for image in axes.images]
    assert len(shown) in (19, 20)  # the image that did not come back may be among the first ten
    originals = finding.pairs.truth.images[:3, 0].numpy()
    for pair in range(3):
        np.testing.assert_allclose(shown[2 * pair][..., 0], shown[2 * pair + 1][..., 0])
        assert any(np.allclose(shown[2 * pair][..., 0], image) for image in originals)
    assert sum(patch.get_linewidth() > 2 for patch in axes.patches) == 3
    shown = [text for text, _ in texts(figure)[0]]
    assert any(text.startswith("recovered 3 of 12 (25%") for text in shown)
    assert any(text.startswith("masks, rolling: N/A") for text in shown)
    assert clashes(figure) == []


def test_no_images_no_figure(tmp_path):
    """Numbers alone are in the table."""
    store = store_of(make_record(labels(), tmp_path, reconstructions=(rebuilt(4),)))
    assert figures(reconstructions, data_of(store)) == []
    assert recovery_text(NotAvailable("why")) == "N/A: why"


def clusters(samples=40, apart=50.0):
    """Members and others in two groups far apart, classes in turn."""
    rng = np.random.default_rng(0)
    members = np.arange(samples) < samples // 2
    features = rng.normal(size=(samples, 8)) + apart * members[:, None]
    return RepresentedSamples(features.astype(np.float32), np.arange(samples) % 2, members, np.arange(samples))


def test_groups_stay_groups_in_two_dimensions():
    """Every point's nearest neighbour is of its own group; the same representations give the same places."""
    found = clusters()
    places = embedded(found)
    assert places.shape == (40, 2)
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1) + 1e9 * np.eye(40)
    assert np.array_equal(found.members[distances.argmin(axis=1)], found.members)
    np.testing.assert_array_equal(places, embedded(found))


def test_representations_begin_with_the_baseline(tmp_path):
    """Two panels for each of at most four rows that have some; all points in both; none without a file."""
    defenses = ["l2", "dropout", "none", "mixup", "bare", "memdefense", "dp-sgd"]
    runs = [make_record(labels(defense=name), folder_of(tmp_path, name)) for name in defenses]
    assert figures(tsne, data_of(store_of(*runs))) == []
    for run in runs:
        if run.labels.defense != "bare":
            clusters().save(run.path)
    [figure] = figures(tsne, data_of(store_of(*runs)))
    shown = panels(figure)
    titles = [axes.get_title(loc="left").partition(":")[0] for axes in shown[::2]]
    assert titles == ["no defense", "l2", "dropout", "mixup"]
    for axes in shown:
        assert sum(len(points.get_offsets()) for points in axes.collections) == 40
        assert all(points.get_rasterized() for points in axes.collections)
    assert clashes(figure) == []


def test_attack_networks_have_a_column_of_their_own(tmp_path):
    """Where any run has kept its features; the place of the others is empty, and the AUC is that of the network."""
    found = finding("nasr", protocol="memdefense")
    kept = make_record(labels(), folder_of(tmp_path, "none"), attacks=(found,))
    bare = make_record(labels(defense="l2"), folder_of(tmp_path, "l2"))
    for run in (kept, bare):
        clusters().save(run.path)
    AttackRepresentations(**clusters(60).arrays()).save(kept.path)
    [figure] = figures(tsne, data_of(store_of(kept, bare)))
    shown = figure.plot.axes
    assert len(shown) == 6
    assert sum(len(points.get_offsets()) for points in shown[2].collections) == 60
    assert shown[2].get_title(loc="left") == f"in the attack network, AUC {found.leakage.auc.value:.3f}"
    assert not shown[5].axison
    assert clashes(figure) == []


def test_representations_show_a_defense_beside_the_same_method(tmp_path):
    """Other methods without a defense come after the defended rows of the baseline's method."""
    places = [("fedavg", "none"), ("heterofl", "none"), ("fedavg", "memdefense")]
    runs = [
        make_record(labels(method=method, defense=name), folder_of(tmp_path, method + name)) for method, name in places
    ]
    for run in runs:
        clusters().save(run.path)
    [figure] = figures(tsne, data_of(store_of(*runs)))
    titles = [axes.get_title(loc="left").partition(":")[0] for axes in panels(figure)[::2]]
    assert titles == ["fedavg / none", "fedavg / memdefense", "heterofl / none"]


def test_cost_is_a_multiple_of_no_defense():
    """Seconds as in the table, bytes both ways, seed by seed; bars end at the means."""
    store = make_store(methods=("fedavg",), defenses=("none", "dp-sgd"), seeds=(0, 1), attacked=False)
    seen = data_of(store)
    [figure] = figures(cost, seen)
    by_seed = {run.labels: run.cost["seconds_per_round"] for run in store.runs}
    ratios = [by_seed[labels(defense="dp-sgd", seed=seed)] / by_seed[labels(seed=seed)] for seed in (0, 1)]
    seconds, sent = panels(figure)
    [bar] = seconds.patches
    assert bar.get_x() + bar.get_width() == pytest.approx(np.mean(ratios))
    assert next(line.get_xdata() for line in seconds.get_lines()) == pytest.approx([min(ratios), max(ratios)])
    [bar] = sent.patches
    assert bar.get_x() + bar.get_width() == pytest.approx(1.0)


def test_bytes_add_both_ways():
    """3 + 1 over 1 + 1 megabytes is twice; a method without a baseline has no ratio."""
    plain = {"megabytes_up": value(1.0), "megabytes_down": value(1.0)}
    dear = {"megabytes_up": value(3.0), "megabytes_down": value(1.0)}
    table = table_of(("a", "none", plain), ("a", "paillier", dear), ("b", "paillier", dear))
    found = bytes_ratios(FigureData(store_of(), table), "digits")
    assert [(ratio.style.label, ratio.mean) for ratio in found] == [("a / paillier", 2.0)]


def test_large_ratios_have_a_logarithmic_axis():
    """A hundred times the bytes: bars begin at 1."""
    plain = {"megabytes_up": value(1.0), "megabytes_down": value(1.0)}
    dear = {"megabytes_up": value(199.0), "megabytes_down": value(1.0)}
    [figure] = figures(cost, FigureData(store_of(), table_of(("a", "none", plain), ("a", "paillier", dear))))
    [axes] = panels(figure)
    assert axes.get_xscale() == "log"
    [bar] = axes.patches
    assert (bar.get_x(), bar.get_x() + bar.get_width()) == (1.0, 100.0)
