"""The core: what happens to a table. Every change is staged, then published in one step."""

from chronolake.description import TableDescription
from chronolake.table.alter import alter
from chronolake.table.create import create
from chronolake.table.history import write_history_batch
from chronolake.table.maintain import MaintenancePlan, MaintenanceResult, maintain, planned
from chronolake.table.migration import SwitchPlan, plan_switch, switch_mode
from chronolake.table.result import BatchResult
from chronolake.table.resync import Gone, resync
from chronolake.table.truncate import TruncateResult, truncate
from chronolake.table.upsert import write_batch
from chronolake.table.verify import Promise, VerifyReport, verify
from chronolake.table.views import create_current_view

__all__ = [
    "BatchResult",
    "Gone",
    "MaintenancePlan",
    "MaintenanceResult",
    "Promise",
    "SwitchPlan",
    "TableDescription",
    "TruncateResult",
    "VerifyReport",
    "alter",
    "create",
    "create_current_view",
    "maintain",
    "plan_switch",
    "planned",
    "resync",
    "switch_mode",
    "truncate",
    "verify",
    "write_batch",
    "write_history_batch",
]
