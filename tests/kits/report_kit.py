"""A table with every kind of entry, figures, and pages of them, made without any run."""

import math
from datetime import datetime
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from store_kit import make_store

from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable, Measure, Row, Value
from app.results.figures.marks import MarkedPlot, mark
from app.results.figures.style import INK, ReportFigure, report_style
from app.results.report.drawing import render_figure
from app.results.report.page import PageContent, page

HIDDEN = "the server sees sums only, so that no single upload can be attacked"
ACCURACY = Measure("server_accuracy", "Accuracy", "Of the server, 0 to 100 %.", "utility", "%", 100.0, 1, False)
AUC = Measure("uploads_auc", "AUC of uploads", "Of the strongest attack; 0.5 is chance.", "leakage", "", 1.0, 3, True)
EPSILON = Measure("epsilon", "Epsilon", "Budget spent.", "formal", "", 1.0, 2, True)
SECONDS = Measure("seconds", "Seconds per round", "Wall-clock time.", "cost", "s", 1.0, 2, True)
VOID = {"meta", "input", "br", "col", "link", "img"}


def entry(mean, half=math.nan, standing="unknown", marks=(), seeds=(0, 1, 2)):
    """An entry of several seeds, spread evenly around its mean."""
    by_seed = {seed: mean + 0.001 * (seed - 1) for seed in seeds}
    interval = "seeds" if math.isfinite(half) else "none"
    return Value(mean, mean - half, mean + half, by_seed, interval, standing, tuple(marks))


def row(method, defense, values, dataset="digits", notes=()):
    """A row of three seeds."""
    runs = tuple(f"{dataset}-{method}-{defense}-{seed}" for seed in (0, 1, 2))
    keys = [measure.key for measure in (ACCURACY, AUC, EPSILON, SECONDS)]
    return Row(dataset, method, defense, (0, 1, 2), runs, dict(zip(keys, values, strict=True)), tuple(notes))


def table():
    """Four rows: one is best in accuracy, two cannot be told apart in leakage, one has no leakage at all."""
    none = NotAvailable("no defense gives a formal promise")
    rows = (
        row("fedavg", "none", (entry(0.91, 0.004, "best"), entry(0.81, 0.02, "worse"), none, entry(2.0))),
        row("fedavg", "memdefense", _memdefense(none), notes=("its choice of cells is public",)),
        row(
            "fedavg",
            "dp-sgd",
            (entry(0.8, 0.01, "worse"), entry(0.53, 0.02, "indistinguishable"), entry(8.0), entry(6.0)),
        ),
        row("fedavg", "secure-aggregation", (entry(0.9, 0.006, "worse"), NotAvailable(HIDDEN), none, entry(10.5))),
    )
    return ComparisonTable(
        (ACCURACY, AUC, EPSILON, SECONDS), rows, ("Tests are paired by seed, corrected after Holm.",)
    )


def _memdefense(none):
    leak = entry(0.52, 0.02, "indistinguishable", ("adaptive", "lira-online"))
    return (entry(0.9, 0.005, "worse"), leak, none, entry(2.2))


@cache
def store(**others):
    """Runs that belong to the table."""
    return make_store(methods=("fedavg",), **others)


def figure(key="pareto", title="Accuracy and leakage", label="fedavg"):
    """A line, which is a mark of the row that its label names, a filled band and a clipped image."""
    with report_style():
        plot, axes = plt.subplots(figsize=(7, 3.2), FigureClass=MarkedPlot)
        [line] = axes.plot([0, 1, 2], [0.2, 0.8, 0.4], marker="o", label=label)
        mark(line, label, kind="curve", says=label, each=[f"{label} {place}" for place in range(3)])
        axes.fill_between([0, 1, 2], [0.1, 0.7, 0.3], [0.3, 0.9, 0.5], alpha=0.2)
        axes.imshow(np.eye(3), extent=(0, 1, 0, 0.2), aspect="auto")
        axes.axhline(0.5, color=INK, lw=0.8)
        axes.set_xlabel("accuracy")
        axes.legend()
        plt.close(plot)
    return ReportFigure(
        key, title, "It shows this.", "Higher is better; the band is the 95 % interval.", plot, {label: 0}
    )


def content_of(table_=None, store_=None, figures=None, files=None, published=None):
    """Content of a page: the table of the kit and its runs, or others."""
    rendered = _two_figures() if figures is None else [render_figure(each) for each in figures]
    tables = files or {"table.csv": "a,b\n1,2\n", "table.md": "| a |\n", "table.tex": "\\begin{tabular}"}
    return PageContent(store_ or store(), table_ or table(), rendered, tables, published)


def page_of(*parts, **others):
    """The page of the table, or of another."""
    return page(content_of(*parts, **others), "report", datetime(2026, 1, 2, 3, 4))


@cache
def _two_figures():
    return (render_figure(figure()), render_figure(figure("other", "Another")))


class Element:
    """An element of a parsed page."""

    def __init__(self, name, attributes, parent):
        self.name, self.attributes, self.parent = name, attributes, parent
        self.children, self.words = [], []

    def all(self, name=None, **wanted):
        """Elements below it by name and attributes, in their order."""
        found = []
        for child in self.children:
            mine = {key.rstrip("_").replace("_", "-"): value for key, value in wanted.items()}
            if name in (None, child.name) and all(child.attributes.get(key) == value for key, value in mine.items()):
                found.append(child)
            found += child.all(name, **wanted)
        return found

    def one(self, name=None, **wanted):
        """The only such element."""
        [found] = self.all(name, **wanted)
        return found

    @property
    def text(self):
        """All text below it, in order."""
        return "".join(word if isinstance(word, str) else word.text for word in self.words)

    def __contains__(self, name):
        return bool(self.all(name))


class Tree(HTMLParser):
    """Parses a page and complains where it is not balanced."""

    def __init__(self, markup):
        super().__init__()
        self.root = self.open = Element("", {}, None)
        self.ids = []
        self.feed(markup)
        self.close()
        assert self.open is self.root, f"{self.open.name} is never closed"

    def handle_starttag(self, name, attributes):
        """An element begins."""
        element = self._added(name, attributes)
        if name not in VOID:
            self.open = element

    def handle_startendtag(self, name, attributes):
        """An element of a drawing without content."""
        self._added(name, attributes)

    def handle_endtag(self, name):
        """An element ends."""
        assert self.open.name == name, f"</{name}> closes {self.open.name}"
        self.open = self.open.parent

    def handle_data(self, data):
        """Text."""
        self.open.words.append(data)

    def _added(self, name, attributes):
        named = dict(attributes)
        assert len(named) == len(attributes), f"an attribute of {name} is given twice"
        self.ids += [named["id"]] if "id" in named else []
        element = Element(name, named, self.open)
        self.open.children.append(element)
        self.open.words.append(element)
        return element


def parsed(markup):
    """The elements of a page."""
    return Tree(markup).root


def write(path: Path, markup: str) -> Path:
    """Keep a page; returns its path."""
    path.write_text(markup)
    return path
