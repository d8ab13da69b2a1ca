"""What the pages of the project show: commands, code, recipes, tables and links."""

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "callbacks", "datamodules", "scripts", "tests")
SHELLS = ("bash", "sh", "shell")


@dataclass(frozen=True)
class Table:
    """A table of a page: the cells of its head, and those of every row below."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self):
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self):
        return self.path.read_text()

    def blocks(self, *languages):
        """Fenced blocks in one of the languages."""
        fences = re.findall(r"^```(\w*)\n(.*?)^```$", self.text, flags=re.DOTALL | re.MULTILINE)
        return [block for language, block in fences if language in languages]

    @property
    def prose(self):
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.DOTALL | re.MULTILINE)

    def commands(self):
        """Every `rampart ...` of shell blocks, and those with arguments that the text mentions, as argument lists."""
        shown = [arguments for block in self.blocks(*SHELLS) for arguments in commands_of(block)]
        mentioned = [shlex.split(code) for code in re.findall(r"`rampart ([^`]+ [^`]+)`", self.prose)]
        return shown + mentioned

    def files(self):
        """Files that the reader is to save: name and content."""
        return re.findall(r"Save this as\s+`([\w.]+)`:\n\n```\w+\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE)

    def scripts(self):
        """Names of the scripts that the page mentions anywhere."""
        return set(re.findall(r"\bscripts/(\w[\w-]*)", self.text))

    def links(self):
        """Targets of links and images that are not on the network: file and anchor."""
        targets = re.findall(r"\]\(([^)\s]+)\)", self.prose)
        return [target.partition("#")[::2] for target in targets if "://" not in target]

    def anchors(self):
        """What links may point to: headings in GitHub's spelling."""
        headings = re.findall(r"^#+ (.+)$", self.prose, flags=re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    def tables(self):
        """All tables."""
        lines = re.findall(r"^\|.*\|\n\|[-|]+\|\n(?:\|.*\|\n?)+", self.prose, flags=re.MULTILINE)
        for table in lines:
            head, _, *rows = [re.split(r"(?<!\\)\|", line.strip("|"))[:] for line in table.strip().splitlines()]
            yield Table([cell.strip() for cell in head], [[cell.strip() for cell in row] for row in rows])


def commands_of(block):
    """Every `rampart ...` of a shell block, as argument lists; comments, pipes and other commands are left out."""
    lines = [line.split(" #")[0].strip() for line in block.replace("\\\n", " ").splitlines()]
    matches = [re.match(r"(?:\$ )?(?:\w+=\S+ )*rampart\b([^|&;>]*)", line) for line in lines]
    return [shlex.split(match.group(1)) for match in matches if match]


def code_in(cell):
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def readmes():
    """All README files, the front page first."""
    below = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("README.md"))
    return [Page(ROOT / "README.md"), *map(Page, below)]
