"""Leaves out the tests that not_claimed.txt lists for the suite TD_SUITE. A line of the list that means no test ends the run: it is old."""
import os
import pathlib


def read_list(suite):
    """{file, file::test or file::test[parameters]: why it is not claimed}, of one suite."""
    found, section = {}, None
    for line in (pathlib.Path(__file__).parent / "not_claimed.txt").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.strip() and not line.startswith("#") and section == suite:
            name, reason = line.split("  ", 1)
            found[name] = reason.strip()
    return found


def pytest_collection_modifyitems(config, items):
    listed = read_list(os.environ["TD_SUITE"])
    files = {name for name in listed if "::" not in name}
    used, left_out, kept = set(), [], []
    for item in items:
        names = {item.nodeid, item.nodeid.split("[")[0]} & set(listed)
        used |= names
        (left_out if names else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
    old = set(listed) - files - used
    if old:
        raise ValueError(f"not_claimed.txt: no test has these names: {', '.join(sorted(old))}")
