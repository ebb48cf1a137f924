"""The page as one file: it holds the values that a server sends, no element but ours, and rules that allow no other script."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import cycle

import pytest

from ramify.core.errors import ConfigError
from ramify.view import page
from ramify.view.page import Bundle, write_page
from ramify.view.payload import RunView
from viewed_runs import HOSTILE, two_calls, write_training

BUNDLE = Bundle(
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>x</title>\n'
    '<link rel="stylesheet" href="bundle.css">\n</head>\n<body>\n<div id="app"></div>\n'
    '<script src="bundle.js" defer></script>\n</body>\n</html>\n',
    "const page = '<\\/script>';",
    "p { color: red }",
)


class Elements(HTMLParser):
    """The elements of a page, and the content of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.blocks, self._inside = [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag in ("script", "style"):
            self.blocks.append((tag, dict(attributes), []))
            self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None if tag == self._inside else self._inside

    def handle_data(self, data):
        if self._inside:
            self.blocks[-1][2].append(data)


def test_a_hostile_run_gives_a_page_of_our_elements_only(tmp_path):
    trees = [two_calls(cycle((text, *HOSTILE)), text, slot=slot) for slot, text in enumerate(HOSTILE)]
    folder = write_training(tmp_path / "<b>rl&", {1: trees, 2: trees})
    view, path = RunView([folder]), tmp_path / "page.html"
    size = write_page(view, path, BUNDLE, lambda: None)
    text = path.read_text()
    assert size == len(text.encode())
    elements = Elements(text)
    assert set(elements.tags) == {"html", "head", "meta", "title", "style", "body", "div", "script"}
    scripts = [(attributes, "".join(data)) for tag, attributes, data in elements.blocks if tag == "script"]
    run, index, *blocks, (attributes, script) = scripts
    assert (attributes, script) == ({}, BUNDLE.script)
    assert json.loads(run[1]) == view.run()
    assert json.loads(index[1]) == [view.index(source) for source in view.sources]
    trees = []
    for about, data in blocks:
        content = json.loads(gzip.decompress(base64.b64decode(data)))
        assert (content[0]["source"], content[0]["row"]) == (about["data-source"], int(about["data-first"]))
        trees += content
    expected = [view.tree(key, row, with_credits=True) for key in view.sources for row in range(len(HOSTILE))]
    assert trees == expected
    rules = re.search('Content-Security-Policy" content="([^"]*)"', text)[1]
    for kind, content in (("script", BUNDLE.script), ("style", BUNDLE.style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in rules
    assert rules.startswith("default-src 'none'")
    assert "unsafe" not in rules


def test_a_page_that_no_browser_opens_is_refused_and_the_old_one_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MAX_PAGE", 1000)
    path = tmp_path / "page.html"
    path.write_text("old")
    view = RunView([write_training(tmp_path / "rl", {1: [two_calls(cycle(HOSTILE))]})])
    with pytest.raises(ConfigError, match="Use --serve"):
        write_page(view, path, BUNDLE, lambda: None)
    assert path.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.html", "rl"]
