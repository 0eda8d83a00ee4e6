"""Two spellings of one place are one place."""

import pytest

from floe_dagster_iceberg.table.storage import FileLocation


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:///wh/t", "file:/wh/t"),
        ("file:///wh/t", "/wh/t"),
        ("file:///wh/t/", "file:///wh/t"),
        ("file://localhost/wh/t", "file:/wh/t"),
        ("s3://bucket/t", "s3a://bucket/t"),
        ("s3n://bucket/t/", "s3://bucket/t"),
        ("gs://bucket/t", "gcs://bucket/t"),
        ("abfss://c@account/t", "abfs://c@account/t"),
    ],
)
def test_the_same_place(one: str, other: str) -> None:
    assert FileLocation.of(one) == FileLocation.of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/t", "s3://other/t"),
        ("s3://bucket/t", "gs://bucket/t"),
        ("file://host/t", "file:///t"),
        ("s3://bucket/a//b", "s3://bucket/a/b"),
        ("s3://bucket/day%3D1", "s3://bucket/day=1"),
    ],
)
def test_not_the_same_place(one: str, other: str) -> None:
    assert FileLocation.of(one) != FileLocation.of(other)


@pytest.mark.parametrize(
    ("outer", "inner", "contains"),
    [
        ("s3://b/wh/t", "s3a://b/wh/t/inner", True),
        ("s3://b/wh/t", "s3://b/wh/t", True),
        ("s3://b/wh/t", "s3://b/wh/t_2", False),
        ("s3://b/wh/t/inner", "s3://b/wh/t", False),
        ("s3://b", "s3://b/wh/t", True),
        ("s3://b/wh/t", "s3://c/wh/t/inner", False),
        ("file:/", "file:///wh", True),
    ],
)
def test_whether_one_place_contains_another(outer: str, inner: str, contains: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert FileLocation.of(outer).contains(FileLocation.of(inner)) is contains
