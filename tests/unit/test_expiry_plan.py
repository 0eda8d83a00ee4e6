"""Which snapshots a plan takes, for any history: branches, tags, rollbacks, clocks that disagree."""

from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from floe_dagster_iceberg.table.maintenance.expiry import Retention, newest_first, plan_expiry

NOW_MS = 1_000_000

EMPTY = new_table_metadata(
    schema=Schema(NestedField(1, "n", LongType())),
    partition_spec=UNPARTITIONED_PARTITION_SPEC,
    sort_order=UNSORTED_SORT_ORDER,
    location="memory:///t",
)


@dataclass(frozen=True)
class Case:
    metadata: TableMetadata
    retention: Retention


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 12))
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=draw(st.sampled_from([None, *range(1, number)])) if number > 1 else None,
            sequence_number=number,
            timestamp_ms=draw(st.integers(0, NOW_MS)),
            manifest_list="memory:///t/m",
        )
        for number in range(1, count + 1)
    ]
    ids = st.integers(1, count)
    age = st.one_of(st.none(), st.integers(1, NOW_MS))
    branch = st.builds(_ref, ids, st.just(SnapshotRefType.BRANCH), age, age, st.one_of(st.none(), st.integers(1, 4)))
    tag = st.builds(_ref, ids, st.just(SnapshotRefType.TAG), age, st.none(), st.none())
    refs = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(branch, tag)))
    refs[MAIN_BRANCH] = draw(branch)
    retention = Retention(draw(st.integers(0, NOW_MS)), draw(st.integers(1, 4)), NOW_MS)
    return Case(_with(EMPTY, snapshots, refs), retention)


def _ref(
    snapshot_id: int, kind: SnapshotRefType, ref_age: int | None, snapshot_age: int | None, keep: int | None
) -> SnapshotRef:
    return SnapshotRef(
        snapshot_id=snapshot_id,
        snapshot_ref_type=kind,
        max_ref_age_ms=ref_age,
        max_snapshot_age_ms=snapshot_age,
        min_snapshots_to_keep=keep,
    )


def _with(metadata: TableMetadata, snapshots: list[Snapshot], refs: dict[str, SnapshotRef]) -> TableMetadata:
    return metadata.model_copy(
        update={"snapshots": snapshots, "refs": refs, "current_snapshot_id": refs[MAIN_BRANCH].snapshot_id}
    )


def _after(metadata: TableMetadata, expired: tuple[int, ...], removed_refs: tuple[str, ...]) -> TableMetadata:
    snapshots = [
        one.model_copy(update={"parent_snapshot_id": None}) if one.parent_snapshot_id in expired else one
        for one in metadata.snapshots
        if one.snapshot_id not in expired
    ]
    return _with(metadata, snapshots, {name: ref for name, ref in metadata.refs.items() if name not in removed_refs})


@pytest.mark.requirement("S2-US4.4")
@given(cases())
def test_what_is_named_or_among_the_newest_never_expires(case: Case) -> None:
    plan = plan_expiry(case.metadata, case.retention)

    stay = {ref.snapshot_id for name, ref in case.metadata.refs.items() if name not in plan.refs}
    newest = {one.snapshot_id for one in newest_first(case.metadata)[: case.retention.min_snapshots_to_keep]}
    assert not set(plan.snapshot_ids) & (stay | newest)
    assert MAIN_BRANCH not in plan.refs


@pytest.mark.requirement("S2-US4.4", "S4-expire_snapshots")
@given(cases())
def test_what_is_old_unnamed_and_outside_every_branchs_newest_expires(case: Case) -> None:
    metadata, retention = case.metadata, case.retention
    plan = plan_expiry(metadata, retention)

    kept = {one.snapshot_id for one in metadata.snapshots} - set(plan.snapshot_ids)
    reasons = {one.snapshot_id for one in newest_first(metadata)[: retention.min_snapshots_to_keep]}
    for name, ref in metadata.refs.items():
        if name in plan.refs:
            continue
        reasons.add(ref.snapshot_id)
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            history = list(ancestors_of(metadata.snapshot_by_id(ref.snapshot_id), metadata))
            own = retention.older_than_ms if ref.max_snapshot_age_ms is None else NOW_MS - ref.max_snapshot_age_ms
            keep = ref.min_snapshots_to_keep or retention.min_snapshots_to_keep
            depth = max([keep, *(at + 1 for at, one in enumerate(history) if one.timestamp_ms >= own)])
            reasons |= {one.snapshot_id for one in history[:depth]}
    reasons |= {one.snapshot_id for one in metadata.snapshots if one.timestamp_ms >= retention.older_than_ms}
    assert kept <= reasons


@pytest.mark.requirement("S2-E8")
@given(cases(), st.integers(1, 3))
def test_batches_expire_what_one_commit_would(case: Case, max_snapshots: int) -> None:
    whole, metadata, expired = plan_expiry(case.metadata, case.retention), case.metadata, []
    while True:
        batch = plan_expiry(metadata, case.retention, max_snapshots=max_snapshots)
        expired += batch.snapshot_ids
        metadata = _after(metadata, batch.snapshot_ids, batch.refs)
        if batch.is_complete:
            break

    assert expired == list(whole.snapshot_ids)


def test_the_order_of_commits_decides_what_is_newest() -> None:
    snapshots = [
        Snapshot(snapshot_id=number, sequence_number=sequence, timestamp_ms=at, manifest_list="memory:///t/m")
        for number, sequence, at in [(1, 2, 10), (2, 1, 30), (3, 3, 20)]
    ]
    metadata = _with(EMPTY, snapshots, {MAIN_BRANCH: _ref(3, SnapshotRefType.BRANCH, None, None, None)})

    assert [one.snapshot_id for one in newest_first(metadata)] == [3, 1, 2]
