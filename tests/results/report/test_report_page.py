"""The report's HTML: balanced, self-contained, escaped, and honest about what is best and what is missing."""

import base64
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_kit import (
    ACCURACY,
    AUC,
    HIDDEN,
    SECONDS,
    Tree,
    content_of,
    entry,
    figure,
    page_of,
    parsed,
    row,
    store,
    table,
)

from app.common.errors import UserError
from app.metrics.intervals import Interval
from app.result import Measurement
from app.results.comparison.table import ComparisonTable
from app.results.published.ours import OwnResult
from app.results.published.side_by_side import PublishedComparison, PublishedRow
from app.results.published.values import PublishedFigure
from app.results.report.details import LARGEST
from app.results.report.page import write_page
from app.results.report.threats import Requirement
from app.results.run.store import Skipped

PNG = b"\x89PNG\r\n\x1a\n"
EVIL = """<img src=x onerror=alert(1)> & "quoted" 'too'"""
LINKS = ("href", "src", "action", "formaction", "poster", "data", "srcset")


@pytest.fixture(scope="module")
def markup():
    """The page of the kit's table."""
    return page_of()


def cells(root, measure):
    """Cells of one column of the page's table, by row name."""
    grid = root.one("table", id="comparison")
    titles = grid.one("thead").children[1].children
    place = [title.attributes["data-key"] for title in titles].index(measure.key)
    return {line.children[0].attributes["data-value"]: line.children[place] for line in grid.one("tbody").children}


def test_balanced_with_unique_ids(markup):
    """Every element is closed in its order, and no name is used twice, figures included."""
    tree = Tree(markup)
    assert len(tree.ids) == len(set(tree.ids))
    assert {"pareto-title", "other-title", "comparison", "findings", "threats"} <= set(tree.ids)


def test_self_contained(markup):
    """No address of anything outside, no element that would load something, and a policy that forbids it."""
    root = parsed(markup)
    assert not re.search(r"https?:|//[a-z]+\.", markup)
    for element in root.all():
        assert element.name not in ("link", "iframe", "object", "embed", "base", "canvas", "img")
        for name in LINKS:
            link = element.attributes.get(name) or "#"
            assert link.startswith(("#", "data:", "report/")), f"{element.name} leads to {link[:80]}"
    policy = root.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.split("; ")[0] == "default-src 'none'"
    assert [rule.split()[0] for rule in policy.split("; ")[1:]] == ["style-src", "script-src", "img-src"]
    assert len(root.all("script")) == len(root.all("style")) == 1


def test_references_within_the_page_have_targets(markup):
    """Links, labels and parts of figures refer to what exists."""
    tree = Tree(markup)
    named = set(tree.ids)
    for element in tree.root.all():
        for name, value in element.attributes.items():
            if name == "href" and value.startswith("#"):
                assert value[1:] in named
            if name == "aria-labelledby":
                assert value in named
            assert set(re.findall(r"url\(#([^)]*)\)", value or "")) <= named


def test_foreign_text_stays_text():
    """Labels, notes, reasons, titles and paths from files cannot become markup, wherever they are shown."""
    known = table()
    best = entry(0.9, 0.1, "best", marks=(EVIL,))
    rows = (
        row(EVIL, EVIL, (best, *[best] * 3), dataset=EVIL, notes=(EVIL,)),
        replace(known.rows[3], values={**known.rows[3].values, AUC.key: replace_reason(EVIL)}),
    )
    measures = tuple(replace(measure, title=EVIL, meaning=EVIL, unit=EVIL) for measure in known.measures)
    runs = store()
    own = Measurement(EVIL, {EVIL: 1.0}, (EVIL,), ((EVIL,),), (EVIL,))
    run = replace(runs.runs[0], path=Path(f"runs/{EVIL}"), notes=(EVIL,), measurements=(own,))
    run = replace(run, labels=replace(run.labels, dataset=EVIL, method=EVIL, defense=EVIL))
    bad = replace(runs, name=EVIL, purpose=EVIL, runs=(run, *runs.runs), skipped=(Skipped(Path(EVIL), EVIL),))
    evil = replace(figure(label=EVIL), title=EVIL, shows=EVIL, reading=EVIL)
    found = page_of(ComparisonTable(measures, rows, (EVIL,)), bad, [evil], {"table.csv": EVIL})
    root = parsed(found)
    assert "img" not in root
    assert "<img" not in found
    assert not [name for element in root.all() for name in element.attributes if name.startswith("on")]
    assert root.one("h1").text == EVIL
    for name in ("rows", "comparison"):
        assert root.one("table", id=name).one("tr", data_method=EVIL).attributes["data-defense"] == EVIL
    told = [each.attributes["data-tip"] for each in root.one("figure").all() if "data-tip" in each.attributes]
    assert told == [f"{EVIL}: {EVIL} {place}" for place in range(3)]
    assert EVIL in root.one("section", id="skipped").text
    assert EVIL in root.one("figure").text


def replace_reason(reason):
    """Something that is not available."""
    return replace(table().rows[3].values[AUC.key], reason=reason)


def test_bold_only_for_the_best(markup):
    """One row is best in accuracy; no other number is bold, whatever its mean."""
    grid = parsed(markup).one("table", id="comparison").one("tbody")
    [strong] = grid.all("strong")
    assert "fedavg / none" in strong.parent.parent.text
    assert strong.text == "91.0 best"
    assert "b" not in grid


def test_entries_tell_their_interval_and_standing(markup):
    """Means with half of the interval, ~ for what cannot be told from the best, and all of it in words."""
    found = cells(parsed(markup), AUC)
    level, worse = found["fedavg / dp-sgd"], found["fedavg / none"]
    assert level.text == "0.530 ± 0.020~ indistinguishable"
    assert worse.text == "0.810 ± 0.020"
    assert "not significantly different from the best" in level.attributes["data-tip"]
    assert "0.510 to 0.550" in level.attributes["data-tip"]
    assert "0.529 (seed 0), 0.530 (seed 1), 0.531 (seed 2)" in level.attributes["data-tip"]
    assert "too few seeds" in cells(parsed(markup), SECONDS)["fedavg / none"].attributes["data-tip"]
    assert [mark.text for mark in found["fedavg / memdefense"].all("small")] == ["adaptive", "lira-online"]


def test_numbers_are_in_the_unit_of_their_column(markup):
    """Fractions as percent, and the plain value for sorting."""
    cell = cells(parsed(markup), ACCURACY)["fedavg / memdefense"]
    assert cell.text == "90.0 ± 0.5"
    assert float(cell.attributes["data-value"]) == 0.9


def test_missing_numbers_have_reasons(markup):
    """N/A with the reason on hover and in a footnote, each reason once; nothing that could be taken for a number."""
    root = parsed(markup)
    cell = cells(root, AUC)["fedavg / secure-aggregation"]
    link = cell.one("a")
    assert link.text.startswith("N/A")
    assert link.attributes["data-tip"] == HIDDEN
    assert "data-value" not in cell.attributes
    notes = root.one("section", id="table").one("ol", class_="footnotes")
    assert [note.text for note in notes.children].count(HIDDEN) == 1
    assert notes.one("li", id=link.attributes["href"][1:]).text == HIDDEN
    assert "its choice of cells is public" in notes.text


def test_infinite_and_undefined_numbers():
    """Neither is sorted as a number, and neither breaks the page."""
    odd = (entry(math.inf), entry(math.nan), entry(1.0), entry(2.0))
    found = cells(parsed(page_of(ComparisonTable(table().measures, (row("a", "b", odd),)))), ACCURACY)
    assert found["a / b"].text == "∞"
    assert "data-value" not in found["a / b"].attributes


def test_the_baseline_is_marked(markup):
    """The row that others are compared with."""
    body = parsed(markup).one("table", id="comparison").one("tbody")
    assert ["baseline" in line.children[0].text for line in body.children] == [True, False, False, False]


def test_filters_offer_what_there_is(markup):
    """Choices only where there is more than one; every column can be sorted; groups can be hidden."""
    root = parsed(markup)
    assert [choice.attributes["data-label"] for choice in root.all("select")] == ["defense"]
    options = [option.text for option in root.one("select").all("option")]
    assert options == ["all", "none", "memdefense", "dp-sgd", "secure-aggregation"]
    assert [box.attributes["data-group"] for box in root.all("input", type="checkbox")] == [
        *("utility", "leakage", "formal", "cost"),
    ]
    heads = root.one("table", id="comparison").one("thead").children[1].children
    assert all(head.attributes["aria-sort"] == "none" and "button" in head for head in heads)


def test_datasets_have_a_column_where_there_are_several():
    """Standings are by dataset, so rows tell which it is."""
    known = table()
    far = replace(known.rows[0], dataset="letters")
    root = parsed(page_of(ComparisonTable(known.measures, (*known.rows, far))))
    heads = root.one("table", id="comparison").all("th", scope="col")
    titles = [head.attributes["data-key"] for head in heads]
    assert titles[:3] == ["row", "dataset", "seeds"]


def test_tables_can_be_saved_from_the_page_alone():
    """The content of every file is part of its link, beside a link to the file."""
    content = "name,value\nü,1\n"
    root = parsed(page_of(files={"table.csv": content}))
    saved, beside = root.one("section", id="downloads").all("a")
    assert saved.attributes["download"] == "table.csv"
    head, _, code = saved.attributes["href"].partition(",")
    assert head == "data:text/csv;charset=utf-8;base64"
    assert base64.b64decode(code).decode() == content
    assert beside.attributes["href"] == "report/table.csv"


def test_threat_models(markup):
    """Six adversaries, with the attacks that each of them ran, and what these attacks read."""
    adversaries, needs = parsed(markup).one("section", id="threats").all("tbody")
    attacks = {line.children[0].text: line.children[3].text for line in adversaries.children}
    assert attacks["Curious client"] == "none in this report"
    assert attacks["Malicious server"] == "rolling"
    assert "yeom" in attacks["External adversary"]
    assert attacks["Server helped by a key holder"] == attacks["Substituting server"] == "none in this report"
    assert len(attacks) == 8
    assert "loss on the sample" in needs.text
    assert Requirement("yeom", "", "", "").purpose in needs.text


def test_threat_models_without_attacks():
    """Still explained."""
    section = parsed(page_of(store_=store(attacked=False))).one("section", id="threats")
    assert "No run of this report was attacked." in section.text


def test_details_of_runs(markup):
    """Configuration, rounds, budgets, channels with accepted leaks, and every attack's number or reason."""
    parts = parsed(markup).one("section", id="runs").all("details")
    assert parts[0].one("summary").text == "fedavg / none on digits, 3 runs"
    dp, masked = parts[2].text, parts[3].text
    assert "runs/compared/digits-fedavg-dp-sgd-0/config.yaml" in dp
    assert "DP-SGD: epsilon 8 at delta 1e-05, sample level" in dp
    assert "neighbours: add or remove one" in dp
    assert "0 of 8" in dp
    assert "secure aggregation: single updates" in masked
    assert "accepted: client 3 is alone in round 2" in masked
    assert "the server sees sums of updates only" in masked


def measured(path: Path, *results: tuple[Measurement, ...]):
    """Details of the first row of a page whose runs have these results of their own; the runs lie in a folder."""
    runs = [
        replace(run, path=path / run.name, measurements=own)
        for run, own in zip(store().runs, [*results, *[()] * len(store().runs)], strict=False)
    ]
    return parsed(page_of(store_=replace(store(), runs=tuple(runs)))).one("section", id="runs").all("details")[0]


def grids(part):
    """Tables by caption: heads and rows."""
    return {
        each.one("caption").text: [[cell.text for cell in line.children] for line in each.all("tr")]
        for each in part.all("table")
    }


def test_results_of_the_users_own(tmp_path):
    """Numbers of every label with a column per run, the tables of the runs below, and remarks with the label."""
    table_ = (("client", "width", "norm"), ((0, "wide", 0.123456), (1, None, 2.0)))
    first = Measurement("drift", {"mean": 0.123456, "most": 1234.0, "none": math.nan}, *table_, ("two rounds",))
    second = Measurement("drift", {"mean": 0.5}, notes=("two rounds",))
    part = measured(tmp_path, (first, Measurement("bare")), (second, Measurement("shift", {"mean": 7})))
    found = grids(part)
    assert [name for name in found if name.startswith(("drift", "shift", "bare"))] == [
        "drift",
        "drift, seed 0",
        "shift",
    ]
    heads = ["Number", "seed 0", "seed 1", "seed 2"]
    assert found["drift"] == [heads, ["mean", "0.1235", "0.5", "not run"], ["most", "1234", "N/A", "not run"]]
    assert found["drift, seed 0"] == [["client", "width", "norm"], ["0", "wide", "0.1235"], ["1", "", "2"]]
    assert found["shift"] == [heads, ["mean", "not run", "7", "not run"]]
    assert part.one("div", id="remarks-0").text.count("two rounds (drift)") == 1
    assert "img" not in part


def test_figures_of_the_users_own(tmp_path):
    """Part of the page, with the label; of every run that has one."""
    runs = [tmp_path / run.name / "results" for run in store().runs[:2]]
    for folder, content in zip(runs, (PNG + b"first", PNG + bytes(LARGEST - len(PNG))), strict=True):
        folder.mkdir(parents=True)
        (folder / "drift.png").write_bytes(content)
    found = measured(tmp_path, *[(Measurement("drift"),)] * 3).all("figure")
    assert [each.one("figcaption").text for each in found] == ["drift, seed 0", "drift, seed 1"]
    images = [each.one("img").attributes for each in found]
    assert [each["alt"] for each in images] == ["drift, seed 0", "drift, seed 1"]
    assert images[0]["src"] == f"data:image/png;base64,{base64.b64encode(PNG + b'first').decode()}"
    assert len(base64.b64decode(images[1]["src"].partition(",")[2])) == LARGEST


def test_no_other_files_become_figures(tmp_path):
    """Neither large ones, nor folders, nor what links and labels point at outside the run, nor links in a circle."""
    run, secret = tmp_path / store().runs[0].name, tmp_path / "secret.png"
    secret.write_bytes(PNG)
    (run / "results").mkdir(parents=True)
    (run / "results" / "large.png").write_bytes(bytes(LARGEST + 1))
    (run / "results" / "folder.png").mkdir()
    (run / "results" / "link.png").symlink_to(secret)
    (run / "results" / "circle.png").symlink_to("circle.png")
    labels = ("large", "folder", "link", "circle", "absent", "../../secret", str(secret.with_suffix("")), "a\0b")
    assert "img" not in measured(tmp_path, tuple(Measurement(label, {"a": 1.0}) for label in labels))
    (run / "results").rename(run / "moved")
    (run / "results").symlink_to(tmp_path)
    assert "img" not in measured(tmp_path, (Measurement("secret"),))


def test_labels_of_the_users_own_are_harmless(tmp_path):
    """Wherever they are shown: a script in them stays text."""
    script = "<script>alert(1)</script>"
    result = Measurement(script, {script: 1.0}, (script,), ((script,),), (script,))
    part = measured(tmp_path, (result,))
    assert "script" not in part
    found = grids(part)
    assert found[script][1] == [script, "1", "not run", "not run"]
    assert found[f"{script}, seed 0"] == [[script], [script]]
    assert f"{script} ({script})" in part.one("div", id="remarks-0").text


def test_remarks_on_attacks_are_told_once():
    """With all results they concern, over all runs of the row."""
    runs = store()
    noted = [replace(one, notes=("few shadows",)) for one in runs.runs[0].attacks]
    same = [replace(run, attacks=tuple(noted)) for run in runs.runs[:2]]
    found = parsed(page_of(store_=replace(runs, runs=(*same, *runs.runs[2:])))).one("div", id="remarks-0").text
    assert found.count("few shadows") == 1
    assert f"few shadows ({', '.join(one.label for one in noted)})" in found


def test_what_was_left_out():
    """Every folder with its reason, or the remark that there is none."""
    left = replace(store(), skipped=(Skipped(Path("runs/half"), "the run is not finished"),))
    assert "runs/half: the run is not finished" in parsed(page_of(store_=left)).one("section", id="skipped").text
    assert "All given folders were read." in parsed(page_of()).one("section", id="skipped").text


def test_how_numbers_were_obtained(markup):
    """Remarks on the table once, and what the signs mean; what was left out has its own part."""
    known = replace(table(), notes=(*table().notes, "left out: half, the run is not finished"))
    text = parsed(page_of(known)).one("section", id="obtained").text
    assert text.count("corrected after Holm") == 1
    assert "~: not significantly different from the best" in text
    assert "neither estimated nor counted as chance" in text
    assert "half" not in text


def test_single_attacks_are_shown_on_demand():
    """Their columns have a group of their own, whose box is not ticked."""
    known = table()
    single = replace(AUC, key="auc:yeom.global", title="yeom.global")
    rows = tuple(replace(each, values={**each.values, single.key: entry(0.6)}) for each in known.rows)
    measures = (*known.measures[:2], single, *known.measures[2:])
    root = parsed(page_of(ComparisonTable(measures, rows)))
    boxes = {box.attributes["data-group"]: "checked" in box.attributes for box in root.all("input", type="checkbox")}
    assert boxes == {"utility": True, "leakage": True, "attack": False, "formal": True, "cost": True}
    assert {cell.text for cell in root.all("td", class_="number g-attack")} == {"0.600"}
    assert "yeom.global" not in root.one("div", class_="paper").text


def test_the_table_on_paper(markup):
    """The same entries; groups of columns share a table only where it is not too wide."""
    root = parsed(markup)
    tables = root.one("div", class_="paper").all("table")
    assert [each.one("caption").text for each in tables] == ["Utility, Leakage, Formal privacy, Cost"]
    more = tuple(replace(ACCURACY, key=f"accuracy{number}") for number in range(9))
    several = parsed(page_of(replace(table(), measures=(*more, *table().measures)))).one("div", class_="paper")
    assert [each.text for each in several.all("caption")] == ["Utility, Leakage", "Formal privacy, Cost"]
    entries = {cell.text for each in tables for cell in each.one("tbody").all("td", class_="number g-leakage")}
    assert entries == {cell.text for cell in cells(root, AUC).values()}


def test_published_results_have_a_part_of_their_own():
    """Foreign text stays text, remarks are footnotes, the part is linked; without published results there is none."""
    figure = PublishedFigure(EVIL, "fedavg", "server_accuracy", 90.0, "%", EVIL, remark=EVIL)
    ours = OwnResult(90.5, Interval(90.0, 91.0), "seeds", (0, 1), 3)
    root = parsed(page_of(published=PublishedComparison((PublishedRow(figure, ours),))))
    part = root.one("section", id="published")
    assert part.one("tbody").one("th").text == f"{EVIL}1"
    assert part.one("ol", class_="footnotes").one("li").text == EVIL
    assert [cell.text for cell in part.one("tbody").all("td")][-3:] == ["90.50 ± 0.50 %", "+0.50", "within"]
    assert "Published results" in root.one("nav").text
    assert "Published results" not in parsed(page_of()).one("nav").text


def test_files(tmp_path):
    """The page, and beside it a folder of its name with tables and figures."""
    path = tmp_path / "new" / "mine.html"
    write_page(path, content_of(figures=[figure()], files={"table.csv": "a\n", "table.md": "b\n"}))
    assert sorted(each.name for each in (tmp_path / "new" / "mine").iterdir()) == [
        *("pareto.png", "pareto.svg", "table.csv", "table.md"),
    ]
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["mine", "mine.html"]
    assert 'href="mine/table.csv"' in path.read_text()
    assert (tmp_path / "new" / "mine" / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_made_again(tmp_path):
    """Files of the report before are replaced or taken away; those of others stay."""
    path, folder = tmp_path / "report.html", tmp_path / "report"
    write_page(path, content_of(figures=[figure("old"), figure("kept")], files={"table.csv": "a\n"}))
    (folder / "mine.png").write_bytes(b"mine")
    write_page(path, content_of(figures=[figure("kept")], files={"table.csv": "b\n"}))
    assert sorted(each.name for each in folder.iterdir()) == ["kept.png", "kept.svg", "mine.png", "table.csv"]
    assert (folder / "table.csv").read_text() == "b\n"


def test_a_place_that_cannot_be_written(tmp_path):
    """Told as a mistake of the user, with what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write") as caught:
        write_page(tmp_path / "file" / "report.html", content_of())
    assert "--output" in caught.value.problems[0].remedy
