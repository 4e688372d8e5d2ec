"""Go, Rust and Java: one tool does it all, and its manifest says which."""

from __future__ import annotations

import re

from closeloop.tasks.projects.folder import Command, Folder, Project


def look_go(folder: Folder) -> Project | None:
    """go.mod, or go.work with the modules it uses."""
    source = folder.first("go.mod", "go.work")
    if source is None:
        return None
    packages = "./..."
    if source == "go.work":
        used = re.findall(r"^(?:use\s+|\s+)(\.\S*)\s*$", folder.text(source), re.MULTILINE)
        packages = " ".join(f"{place.rstrip('/')}/..." for place in used) or packages
    config = folder.first(".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json")
    lint = Command(line="golangci-lint run", source=config) if config else None
    return Project(
        kind="Go",
        setup=(Command(line="go mod download", source=source),),
        test=Command(line=f"go test {packages}", source=source),
        lint=lint or Command(line=f"go vet {packages}", source=source),
        build=Command(line=f"go build {packages}", source=source),
    )


def look_rust(folder: Folder) -> Project | None:
    """Cargo.toml; all members where it is a workspace."""
    source = "Cargo.toml"
    if source not in folder:
        return None
    whole = " --workspace" if "workspace" in folder.toml(source) else ""

    def cargo(line: str) -> Command:
        return Command(line=f"cargo {line}", source=source)

    return Project(
        kind="Rust",
        setup=(cargo("fetch"),),
        test=cargo(f"test{whole}"),
        lint=cargo(f"clippy{whole} --all-targets"),
        types=cargo(f"check{whole} --all-targets"),
        build=cargo(f"build{whole}"),
    )


def look_java(folder: Folder) -> Project | None:
    """Maven or Gradle, through the project's own wrapper where it has one."""
    if "pom.xml" in folder:
        return _maven(folder)
    source = folder.first(
        "build.gradle.kts", "build.gradle", "settings.gradle.kts", "settings.gradle"
    )
    if source is None:
        return None
    gradle = "./gradlew" if "gradlew" in folder else "gradle"
    return Project(
        kind="Java",
        test=Command(line=f"{gradle} test", source=source),
        lint=Command(line=f"{gradle} check -x test", source=source),
        build=Command(line=f"{gradle} assemble", source=source),
    )


def _maven(folder: Folder) -> Project:
    source = "pom.xml"
    maven = "./mvnw" if "mvnw" in folder else "mvn"

    def goal(goals: str) -> Command:
        return Command(line=f"{maven} -B {goals}", source=source)

    plugins = {
        "spotless-maven-plugin": "spotless:check",
        "maven-checkstyle-plugin": "checkstyle:check",
    }
    text = folder.text(source)
    lint = next((goal(check) for plugin, check in plugins.items() if plugin in text), None)
    return Project(
        kind="Java",
        setup=(goal("dependency:go-offline"),),
        test=goal("test"),
        lint=lint,
        build=goal("-DskipTests package"),
    )
