"""What starts an asset behind a stream: new rows whose blocking checks are green."""

from __future__ import annotations

from typing import Any

import dagster as dg


@dg.template_var
def when_new_and_green() -> dg.AutomationCondition[Any]:
    """Return the condition that an asset is run once the streams it reads have new, checked rows.

    Dagster's own ``eager`` also starts behind a red check, behind a run that found nothing, and
    together with a stream that is requested and may find nothing; and it passes over rows that come
    while the asset is requested or executed. New rows whose checks are red wait until the checks
    are green.
    """
    condition = dg.AutomationCondition
    passed = condition.all_checks_match(condition.check_passed(), blocking_only=True)
    # A run of both has executed the target, too, unless a red check held it back, which may be
    # green by now.
    is_elsewhere = ~(condition.executed_with_root_target() & passed)
    is_idle = ~(condition.newly_updated() | condition.in_progress())
    changed = condition.data_version_changed()
    of_both = condition.any_deps_match(changed) & is_idle
    new = condition.any_deps_match(changed & is_elsewhere) | of_both
    # Only a request is behind what was new before it; what its tick finds may not have been read.
    handled = (condition.newly_requested() & ~new) | condition.initial_evaluation()
    behind = condition.eager().replace("any_deps_updated", new).replace("handled", handled)
    return (behind & condition.all_deps_blocking_checks_passed()).with_label("when_new_and_green")
