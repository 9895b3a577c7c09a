"""Puts conf/ into the wheel, as headloom/conf; the rest of the package is described in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPresets(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # an editable package finds conf/ where it is
            target = Path(self.build_lib) / "headloom" / "conf"
            shutil.rmtree(target, ignore_errors=True)  # an earlier build's, with presets that are no more
            shutil.copytree("conf", target)


setup(cmdclass={"build_py": BuildWithPresets})
