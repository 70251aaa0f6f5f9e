"""The packages of the wheel: every package below this folder, which is the package ``dlbricks`` itself."""

from setuptools import find_packages, setup

_OUTSIDE = ("tests", "tests.*", "benchmarks", "benchmarks.*", "build", "build.*")
"""Folders that never enter the wheel."""

setup(packages=["dlbricks", *(f"dlbricks.{name}" for name in find_packages(exclude=_OUTSIDE))])
