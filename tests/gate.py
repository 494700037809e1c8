"""Where the seconds of `make test` go: a line for each part of its last run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

REPORT = Path(__file__).parents[1] / "build" / "gate.xml"


def parts(report: Path = REPORT) -> dict[str, float]:
    """Seconds by part: each promise of a rung, each folder of the other tests."""
    seconds: Counter[str] = Counter()
    for test in ET.parse(report).getroot().iter("testcase"):
        place = str(test.get("classname"))
        rung = place.endswith(".test_rungs")
        name = re.sub(r"\[.*", "", str(test.get("name"))).removeprefix("test_").replace("_", " ")
        seconds[name if rung else "/".join(place.split(".")[:2])] += float(test.get("time", 0))
    return dict(seconds.most_common())


def lines(report: Path = REPORT) -> Iterator[str]:
    """What `make bench` prints of the gate."""
    if not report.exists():
        yield "where the seconds of `make test` go: run it once, then this shows them"
        return
    found = parts(report)
    when = datetime.fromtimestamp(report.stat().st_mtime)
    total = sum(found.values())
    yield f"where the {total:.0f} s of work of `make test` went, {when:%Y-%m-%d %H:%M}"
    for name, seconds in found.items():
        if seconds >= 1:
            yield f"{name:60}{seconds:8.1f}{seconds / total:8.1%}"
