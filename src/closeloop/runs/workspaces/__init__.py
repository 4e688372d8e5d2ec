"""Workspaces: a fresh copy of a repository for every attempt, and what changed in it."""

from closeloop.runs.sandbox.workspace_layout import SandboxLimits
from closeloop.runs.workspaces.source_repository import resolve_commit
from closeloop.runs.workspaces.workspace_bases import WorkspaceBase
from closeloop.runs.workspaces.workspace_patches import UnreadableChange
from closeloop.runs.workspaces.workspace_pool import Workspace, WorkspacePool

__all__ = [
    "SandboxLimits",
    "UnreadableChange",
    "Workspace",
    "WorkspaceBase",
    "WorkspacePool",
    "resolve_commit",
]
