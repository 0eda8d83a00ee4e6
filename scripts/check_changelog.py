"""Fail unless the newest entry of CHANGELOG.md is the version in pyproject.toml."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"^## \[(?P<version>[^]]+)\] - (?P<date>\d{4}-\d{2}-\d{2}|unreleased)$")


def newest_entry(changelog: str) -> str:
    """The version of the first entry; entries look like `## [1.2.0] - 2026-01-31`."""
    heading = next((line for line in changelog.splitlines() if line.startswith("## ")), "")
    entry = ENTRY.match(heading)
    if entry is None:
        raise SystemExit(f"CHANGELOG.md: the first entry is '{heading}'. Write it as '## [1.2.0] - 2026-01-31'.")
    return entry["version"]


def main(root: Path = ROOT) -> None:
    """Compare the two files under `root`."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    changelog = newest_entry((root / "CHANGELOG.md").read_text())
    if changelog != version:
        raise SystemExit(
            f"CHANGELOG.md starts with {changelog}, pyproject.toml has {version}. Add an entry for the new version."
        )
    print(f"Changelog and package are at version {version}.")


if __name__ == "__main__":
    main()
