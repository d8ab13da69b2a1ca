"""The report of real runs in a real browser; `RAMPART_REPORT=runs/demo/report.html` tries that one instead."""

import os
from pathlib import Path

import pytest
from browser_kit import Browser, chromium
from run_kit import exit_code, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium is installed, which this test drives"),
]

ATTACKED = (
    *("--config", "membership", "--config", "representations", "--attacks.membership.attacks", '["yeom"]'),
    *("--attacks.membership.controls", "skip", "--data.holdout.clients", "0.5"),
    *("--attacks.representations.samples", "60"),
)
NAMES = "[...document.querySelectorAll('#comparison tbody tr:not([hidden]) .name')].map((one) => one.textContent)"
KEYS = "[...document.querySelectorAll('#comparison th[data-key]')].map((one) => one.dataset.key)"
CLICK = "document.querySelector('#comparison th[data-key=\"{key}\"] button').click()"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
SIZES = """
[...document.querySelectorAll('.drawing svg')].map((one) => {
    const box = one.getBBox();
    return [box.width, box.height, one.getBoundingClientRect().width];
})
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of two runs, with and without a defense, both attacked."""
    if given := os.environ.get("RAMPART_REPORT"):
        return Path(given).resolve()
    root = tmp_path_factory.mktemp("runs")
    train(root, "plain", *ATTACKED, rounds=1)
    train(root, "defended", "--config", "memdefense", *ATTACKED, rounds=1)
    assert exit_code("report", str(root)) == 0
    return root / "report.html"


def test_the_report_of_real_runs(report, tmp_path, monkeypatch):
    """The table sorts, the theme switches, every picture is drawn, nothing is asked for but the file itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(report)
        before, keys = browser.run(NAMES), browser.run(KEYS)
        assert len(before) > 1
        assert {"server_accuracy", "global_auc", "seconds"} <= set(keys)
        browser.run(CLICK.format(key="server_accuracy"))
        rising = browser.run(NAMES)
        browser.run(CLICK.format(key="server_accuracy"))
        assert sorted(rising) == sorted(before)
        assert browser.run(NAMES)[0] != rising[0]
        light = browser.run(BACKGROUND)
        browser.run("document.getElementById('theme').click()")
        assert browser.run(BACKGROUND) != light
        sizes = browser.run(SIZES)
        assert len(sizes) == browser.run("document.querySelectorAll('.drawing').length") >= 5
        assert all(width > 100 and height > 50 and shown > 200 for width, height, shown in sizes)
        assert [one for one in browser.requested() if not one.startswith("data:")] == [report.as_uri()]
        assert browser.complaints() == []
    finally:
        browser.close()
