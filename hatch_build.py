"""Puts the dashboard and the guide into the wheel: each is built first where it is not current."""

import importlib.util
import os
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WITHOUT_GUIDE = "PERDURE_BUILD_WITHOUT_GUIDE"
"""Set by `./dev`, whose editable install takes the guide from `./dev docs`."""


class PagesHook(BuildHookInterface):  # type: ignore[misc]
    """Builds pages before a wheel is made. An editable install is left to `./dev setup` and `./dev docs`."""

    def dependencies(self) -> list[str]:
        """Return what the guide is built with, unless no guide is wanted or its pages are not here."""
        if os.environ.get(WITHOUT_GUIDE) or not self._path("docs/build_site.py").exists():
            return []
        project = tomllib.loads(self._path("pyproject.toml").read_text(encoding="utf-8"))["project"]
        packages: list[str] = project["optional-dependencies"]["docs"]
        return packages

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        dashboard = self._load("dashboard_build", "dashboard/build.py")
        try:
            dashboard.ensure()
        except dashboard.NotBuilt as reason:
            # A wheel without pages still serves everything else, and its page says what is missing.
            self.app.display_warning(f"The wheel has no dashboard: {reason}.")
        if not self.dependencies():
            return
        guide = self._load("guide_build", "docs/build_site.py")
        try:
            guide.build()
        except guide.NotBuilt as reason:
            self.app.display_warning(f"The wheel has no guide: {reason}.")

    def _path(self, place: str) -> Path:
        return Path(self.root) / place

    def _load(self, name: str, place: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, self._path(place))
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{place} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
