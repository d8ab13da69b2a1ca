"""Figures within the page: ink that follows the theme, names of their own, no rules for the rest of the page."""

import re
import warnings
from xml.etree import ElementTree

from report_kit import Tree, figure

from app.results.figures.style import INK
from app.results.report.drawing import render_figure


def test_ink_follows_the_page():
    """What is drawn in ink takes the colour of the page's text; other colours stay."""
    drawing = render_figure(figure())
    found = drawing.inline_svg
    assert INK in drawing.svg
    assert INK not in found
    assert found.count("currentColor") >= drawing.svg.count(INK)
    assert "#2f7fd1" in found


def test_names_do_not_clash():
    """The same figure twice, under two keys: no name in common, and every reference stays within its own drawing."""
    first, second = (Tree(render_figure(figure(key)).inline_svg) for key in ("one", "two"))
    assert first.ids
    assert not set(first.ids) & set(second.ids)
    for tree in (first, second):
        values = [value for element in tree.root.all() for value in element.attributes.values()]
        wanted = {name for value in values for name in re.findall(r"url\(#([^)]*)\)", value)}
        wanted |= {value[1:] for value in values if value.startswith("#") and len(value) > 1}
        assert wanted
        assert wanted <= set(tree.ids)


def test_marks_tell_their_rows_and_values():
    """Places in the table, and what is shown for every point; parts that nothing refers to have no name."""
    root = Tree(render_figure(figure(label="fedavg")).inline_svg).root
    [curve] = [element for element in root.all() if "data-rows" in element.attributes]
    assert curve.attributes["data-rows"] == "0"
    assert curve.attributes["class"] == "drawn curve"
    assert "id" not in curve.attributes
    told = [point.attributes["data-tip"] for point in curve.all("use")]
    assert told == [f"fedavg: fedavg {place}" for place in range(3)]


def test_a_line_without_points_says_one_thing():
    """Where what is drawn are not the points that were announced, the whole mark speaks."""
    drawn = figure(label="fedavg")
    drawn.plot.axes[0].get_lines()[0].set_marker("")
    root = Tree(render_figure(drawn).inline_svg).root
    [curve] = [element for element in root.all() if "data-tip" in element.attributes]
    assert curve.attributes["data-tip"] == "fedavg: fedavg"
    assert curve.attributes["data-rows"] == "0"


def test_nothing_reaches_the_rest_of_the_page():
    """No rules, no metadata, no addresses of namespaces; text stays text."""
    found = render_figure(figure()).inline_svg
    assert not re.search(r"<style|<metadata|xmlns|http", found)
    assert ">accuracy</text>" in found


def test_the_drawing_has_a_name_and_no_fixed_size():
    """It shrinks with the page, and readers of the screen get the title that stands above it."""
    root = ElementTree.fromstring(render_figure(figure("above")).inline_svg)
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "above-title"
    assert root.get("width") is None
    assert root.get("viewBox")


def test_files_are_complete():
    """The SVG file stands alone; drawing again gives the same file."""
    first, second = render_figure(figure()), render_figure(figure())
    assert ElementTree.fromstring(first.svg).get("width", "").endswith("pt")
    assert first.svg == second.svg


def test_names_that_the_font_lacks_are_left_to_the_browser():
    """The page keeps the characters, the PNG file spells them; no warning of either."""
    drawn = figure()
    drawn.plot.axes[0].set_title("run 猫")
    with warnings.catch_warnings(action="error"):
        drawing = render_figure(drawn)
    assert "run 猫" in drawing.svg
    assert drawn.plot.axes[0].get_title() == "run U+732B"
