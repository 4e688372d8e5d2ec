"""Print a CycloneDX 1.5 list of what closeloop is installed with: python release/make_sbom.py

It is made from the metadata of the installed packages, so run it in the environment that it is
about. The same packages give the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

ROOT = "closeloop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normalise_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_requirements(package: Distribution) -> list[str]:
    """The names of required packages that are installed, those of extras too."""
    names = set()
    for requirement in package.requires or ():
        match = _NAME.match(requirement)
        if match:
            names.add(normalise_name(match[0]))
    return sorted(name for name in names if find_package(name) is not None)


def find_package(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def collect_packages(root: str) -> dict[str, Distribution]:
    """A package and all that it requires, by name."""
    packages: dict[str, Distribution] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        package = find_package(name)
        if package is None or name in packages:
            continue
        packages[name] = package
        waiting += installed_requirements(package)
    return dict(sorted(packages.items()))


def package_reference(name: str, package: Distribution) -> str:
    return f"pkg:pypi/{name}@{package.version}"


def describe_package(name: str, package: Distribution) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "application" if name == ROOT else "library",
        "bom-ref": package_reference(name, package),
        "name": name,
        "version": package.version,
        "purl": package_reference(name, package),
    }
    about = package.metadata
    license_text = about.get("License-Expression") or about.get("License")
    if license_text and "\n" not in license_text:
        component["licenses"] = [{"license": {"name": license_text}}]
    return component


def build_sbom() -> dict[str, Any]:
    packages = collect_packages(ROOT)
    if ROOT not in packages:
        sys.exit("closeloop is not installed here: pip install it first.")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": describe_package(ROOT, packages[ROOT])},
        "components": [
            describe_package(name, one) for name, one in packages.items() if name != ROOT
        ],
        "dependencies": [
            {
                "ref": package_reference(name, one),
                "dependsOn": [
                    package_reference(other, packages[other])
                    for other in installed_requirements(one)
                    if other in packages
                ],
            }
            for name, one in packages.items()
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(build_sbom(), indent=2) + "\n")
