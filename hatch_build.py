"""Puts the dashboard into the wheel: it is built first where it is not current."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface):  # type: ignore[misc]
    """Builds the dashboard before a wheel is made. An editable install is left to `./dev setup`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        place = Path(self.root) / "dashboard" / "build.py"
        spec = importlib.util.spec_from_file_location("dashboard_build", place)
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{place} cannot be loaded")
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        try:
            build.ensure()
        except build.NotBuilt as reason:
            # A wheel without pages still serves everything else, and its page says what is missing.
            self.app.display_warning(f"The wheel has no dashboard: {reason}.")
