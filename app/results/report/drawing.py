"""Figures as files and as part of the page: text stays text, the ink follows the theme, marks tell their rows."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup

from app.common.files import spell_missing_glyphs
from app.results.figures.marks import marks_of
from app.results.figures.style import INK, ReportFigure, report_style

REFERENCE = re.compile(r"url\(#([^)]*)\)")
ROWS, TIP = "data-rows", "data-tip"
"""Attributes that the script of the page reads: places of the rows in the table, and what to show about a part."""

LEFT_OUT = frozenset({"metadata", "style", "title"})
"""Elements that are left out of the page: metadata, and style rules that would apply to the whole page."""


@dataclass(frozen=True, eq=False)
class RenderedFigure:
    """A figure with its files: SVG on a transparent background, PNG on white."""

    figure: ReportFigure
    svg: str
    png: bytes

    @property
    def title_id(self) -> str:
        """Id of its heading in the page."""
        return f"{self.figure.key}-title"

    @property
    def inline_svg(self) -> Markup:
        """The drawing as an element of the page, labelled by its heading."""
        root = ElementTree.fromstring(self.svg)  # noqa: S314, matplotlib wrote it just now
        _strip(root)
        self._tell_marks(root)
        used = _referenced(root)
        for element in root.iter():
            _rename(element, f"{self.figure.key}-", used)
        width = root.get("viewBox", "0 0 0 0").split()[2]
        for name in ("width", "height", "version"):
            root.attrib.pop(name, None)
        # points of 1/72 inch as pixels of 1/96 inch: the size in which it was drawn
        root.set("style", f"--drawn: {float(width) * 4 / 3:.0f}px")
        root.set("role", "img")
        root.set("aria-labelledby", self.title_id)
        return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704, texts of the drawing are escaped

    def _tell_marks(self, root: ElementTree.Element) -> None:
        """Give marks the places of their rows in the table, and what they say, for the script of the page."""
        marks = marks_of(self.figure.plot)
        for element in root.iter():
            if (mark := marks.get(element.get("id", ""))) is None:
                continue
            places = [str(self.figure.rows[name]) for name in mark.rows if name in self.figure.rows]
            element.set("class", f"drawn {element.get('id', '').rpartition('-')[0]}")
            element.set(ROWS, " ".join(places))
            points = list(element.iter("use"))
            single = mark.each if len(mark.each) == len(points) else ()
            told = zip(points, single, strict=True) if single else [(element, mark.says)] * bool(mark.says)
            for part, says in told:
                part.set(TIP, f"{', '.join(mark.rows)}: {says}")


def render_figure(figure: ReportFigure) -> RenderedFigure:
    """Draw a figure in both formats."""
    vector, raster = io.StringIO(), io.BytesIO()
    with report_style():
        with warnings.catch_warnings():
            # text stays text: the fonts of the browser draw it
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.plot.savefig(vector, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        spell_missing_glyphs(figure.plot)
        figure.plot.savefig(raster, format="png", bbox_inches="tight", dpi=150, facecolor="white")
    return RenderedFigure(figure, vector.getvalue(), raster.getvalue())


def _strip(parent: ElementTree.Element) -> None:
    """Remove elements that the page leaves out, and namespaces, which HTML does not need."""
    parent.tag = _local(parent.tag)
    parent.attrib = {_local(name): value for name, value in parent.attrib.items()}
    for child in list(parent):
        if not isinstance(child.tag, str) or _local(child.tag) in LEFT_OUT:
            parent.remove(child)
        else:
            _strip(child)


def _referenced(root: ElementTree.Element) -> set[str]:
    """Ids that some part of the drawing refers to."""
    values = [value for element in root.iter() for value in element.attrib.values()]
    links = [value[1:] for value in values if value.startswith("#")]
    return {*links, *(name for value in values for name in REFERENCE.findall(value))}


def _rename(element: ElementTree.Element, prefix: str, used: set[str]) -> None:
    """Give ids that are used a prefix that no other figure has, and replace the ink by that of the page."""
    if element.get("id") not in used:
        element.attrib.pop("id", None)
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, prefix + value)
        elif name in (ROWS, TIP):
            continue
        elif name == "href" and value.startswith("#"):
            element.set(name, f"#{prefix}{value[1:]}")
        else:
            element.set(name, REFERENCE.sub(rf"url(#{prefix}\1)", value).replace(INK, "currentColor"))


def _local(name: str) -> str:
    return name.rpartition("}")[2]
