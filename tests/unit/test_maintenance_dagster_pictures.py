import base64
from xml.etree import ElementTree as ET

from floe_dagster_iceberg.maintenance.report import add_bars, draw_histogram
from floe_dagster_iceberg.models import FileSizeBin

MANY_SMALL = (FileSizeBin(upper_bytes=1024, files=9, total_bytes=900), FileSizeBin(files=0, total_bytes=0))
ONE_LARGE = (FileSizeBin(upper_bytes=1024, files=0, total_bytes=0), FileSizeBin(files=1, total_bytes=9000))


def drawn(markdown: str) -> ET.Element:
    """The picture inside the Markdown, as any browser would parse it."""
    encoded = markdown.removeprefix("![Data files by size](data:image/svg+xml;base64,").removesuffix(")")
    return ET.fromstring(base64.b64decode(encoded))  # noqa: S314 - our own text


def words(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.findall("{http://www.w3.org/2000/svg}text")]


def test_before_and_after_stand_side_by_side() -> None:
    picture = drawn(draw_histogram(MANY_SMALL, ONE_LARGE))

    assert len(picture.findall("{http://www.w3.org/2000/svg}rect")) == 2
    assert {"before", "after", "9", "1", "< 1.0 KiB", "≥ 1.0 KiB"} <= set(words(picture))


def test_one_state_needs_no_legend() -> None:
    assert not {"before", "after"} & set(words(drawn(draw_histogram(MANY_SMALL))))


def test_nothing_measured_is_no_picture() -> None:
    assert draw_histogram(()) == ""
    assert add_bars([None]) == ()


def test_histograms_of_several_tables_add_up() -> None:
    assert add_bars([MANY_SMALL, None, ONE_LARGE]) == (
        FileSizeBin(upper_bytes=1024, files=9, total_bytes=900),
        FileSizeBin(files=1, total_bytes=9000),
    )
