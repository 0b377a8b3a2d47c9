"""Operations on tables. Every change is staged on a branch, then published in one step."""

from chronolake.core.alter import alter
from chronolake.core.create import create
from chronolake.core.history import write_history_batch
from chronolake.core.maintain import MaintenancePlan, MaintenanceResult, maintain, plan_table
from chronolake.core.merge import BatchResult
from chronolake.core.migration import SwitchPlan, plan_switch, switch_mode
from chronolake.core.reload import MissingRecords, ResyncPlan, plan_resync, resync
from chronolake.core.truncate import TruncateResult, truncate
from chronolake.core.upsert import write_batch
from chronolake.core.verify import Invariant, VerifyReport, verify
from chronolake.core.views import create_current_view
from chronolake.description import TableDescription

__all__ = [
    "BatchResult",
    "Invariant",
    "MaintenancePlan",
    "MaintenanceResult",
    "MissingRecords",
    "ResyncPlan",
    "SwitchPlan",
    "TableDescription",
    "TruncateResult",
    "VerifyReport",
    "alter",
    "create",
    "create_current_view",
    "maintain",
    "plan_resync",
    "plan_switch",
    "plan_table",
    "resync",
    "switch_mode",
    "truncate",
    "verify",
    "write_batch",
    "write_history_batch",
]
