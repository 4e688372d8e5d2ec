"""Go, Rust and Java: one tool does it all, and its manifest says which."""

from __future__ import annotations

import re

from closeloop.tasks.projects.manifest_folder import DetectedProject, ManifestFolder, ProjectCommand


def probe_go_project(folder: ManifestFolder) -> DetectedProject | None:
    """go.mod, or go.work with the modules it uses."""
    source = folder.find_first("go.mod", "go.work")
    if source is None:
        return None
    packages = "./..."
    if source == "go.work":
        used = re.findall(r"^(?:use\s+|\s+)(\.\S*)\s*$", folder.read_text(source), re.MULTILINE)
        packages = " ".join(f"{place.rstrip('/')}/..." for place in used) or packages
    config = folder.find_first(
        ".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json"
    )
    lint = ProjectCommand(line="golangci-lint run", source=config) if config else None
    return DetectedProject(
        kind="Go",
        setup=(ProjectCommand(line="go mod download", source=source),),
        test=ProjectCommand(line=f"go test {packages}", source=source),
        lint=lint or ProjectCommand(line=f"go vet {packages}", source=source),
        build=ProjectCommand(line=f"go build {packages}", source=source),
    )


def probe_rust_project(folder: ManifestFolder) -> DetectedProject | None:
    """Cargo.toml; all members where it is a workspace."""
    source = "Cargo.toml"
    if source not in folder:
        return None
    whole = " --workspace" if "workspace" in folder.read_toml(source) else ""

    def cargo(line: str) -> ProjectCommand:
        return ProjectCommand(line=f"cargo {line}", source=source)

    return DetectedProject(
        kind="Rust",
        setup=(cargo("fetch"),),
        test=cargo(f"test{whole}"),
        lint=cargo(f"clippy{whole} --all-targets"),
        types=cargo(f"check{whole} --all-targets"),
        build=cargo(f"build{whole}"),
    )


def probe_java_project(folder: ManifestFolder) -> DetectedProject | None:
    """Maven or Gradle, through the project's own wrapper where it has one."""
    if "pom.xml" in folder:
        return _maven_project(folder)
    source = folder.find_first(
        "build.gradle.kts", "build.gradle", "settings.gradle.kts", "settings.gradle"
    )
    if source is None:
        return None
    gradle = "./gradlew" if "gradlew" in folder else "gradle"
    return DetectedProject(
        kind="Java",
        test=ProjectCommand(line=f"{gradle} test", source=source),
        lint=ProjectCommand(line=f"{gradle} check -x test", source=source),
        build=ProjectCommand(line=f"{gradle} assemble", source=source),
    )


def _maven_project(folder: ManifestFolder) -> DetectedProject:
    source = "pom.xml"
    maven = "./mvnw" if "mvnw" in folder else "mvn"

    def goal(goals: str) -> ProjectCommand:
        return ProjectCommand(line=f"{maven} -B {goals}", source=source)

    plugins = {
        "spotless-maven-plugin": "spotless:check",
        "maven-checkstyle-plugin": "checkstyle:check",
    }
    text = folder.read_text(source)
    lint = next((goal(check) for plugin, check in plugins.items() if plugin in text), None)
    return DetectedProject(
        kind="Java",
        setup=(goal("dependency:go-offline"),),
        test=goal("test"),
        lint=lint,
        build=goal("-DskipTests package"),
    )
