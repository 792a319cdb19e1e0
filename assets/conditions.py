"""What starts an asset behind a stream: new rows whose blocking checks are green."""

from __future__ import annotations

from typing import Any

import dagster as dg


@dg.template_var
def when_new_and_green() -> dg.AutomationCondition[Any]:
    """Return the condition that an asset is run once the streams it reads have new, checked rows.

    Dagster's own ``eager`` also starts behind a red check, behind a run that found nothing, and
    together with a stream that is requested and may find nothing. New rows whose checks are red
    wait until the checks are green.
    """
    condition = dg.AutomationCondition
    new = condition.data_version_changed() & ~condition.executed_with_root_target()
    behind = condition.eager().replace("any_deps_updated", condition.any_deps_match(new))
    green = condition.all_deps_blocking_checks_passed()
    return (behind & green).with_label("when_new_and_green")
