"""What starts an asset behind a stream: new rows whose blocking checks are green."""

from __future__ import annotations

from typing import Any

import dagster as dg


@dg.template_var
def when_new_and_green() -> dg.AutomationCondition[Any]:
    """Return the condition that an asset is run once the streams it reads have new, checked rows.

    Dagster's own ``eager`` also starts behind a red check, and behind a run that found nothing.
    New rows whose checks are red wait for the first run that is green, whatever that one reads.
    """
    new = dg.AutomationCondition.eager().replace(
        "newly_updated", dg.AutomationCondition.data_version_changed()
    )
    green = dg.AutomationCondition.all_deps_blocking_checks_passed()
    return (new & green).with_label("when_new_and_green")
