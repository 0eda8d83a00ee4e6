"""Which part of a policy is about which operation."""

from floe_dagster_iceberg.models import MaintenanceOperation, MaintenancePolicy
from floe_dagster_iceberg.models.maintenance import OperationPolicy


def policy_of(operation: MaintenanceOperation, policy: MaintenancePolicy) -> OperationPolicy:
    """The part of a policy that is about one operation; position deletes belong to compaction."""
    sections: dict[MaintenanceOperation, OperationPolicy] = {
        MaintenanceOperation.COMPACTION: policy.compaction,
        MaintenanceOperation.POSITION_DELETES: policy.compaction,
        MaintenanceOperation.SNAPSHOT_EXPIRY: policy.expiry,
        MaintenanceOperation.MANIFESTS: policy.manifests,
        MaintenanceOperation.ORPHAN_FILES: policy.orphans,
    }
    return sections[operation]
