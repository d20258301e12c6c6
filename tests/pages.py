"""Reading a report as a browser would, without one."""

import json
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Checks that tags are balanced, and collects what could make a request."""

    VOID = frozenset(("meta", "link", "br", "img", "input", "path", "rect", "circle", "hr"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "action", "srcset", "data"):
                self.addresses.append(value)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def data_of(report):
    """Return what the plots of a report are drawn from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', report)
    return json.loads(found[1])
