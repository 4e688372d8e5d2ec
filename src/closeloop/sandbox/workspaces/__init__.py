"""Workspaces: a fresh copy of a repository for every attempt, and what changed in it."""

from closeloop.sandbox.workspace_layout import SandboxLimits
from closeloop.sandbox.workspaces.source_repository import resolve_commit
from closeloop.sandbox.workspaces.workspace_bases import WorkspaceBase
from closeloop.sandbox.workspaces.workspace_patches import UnreadableChange
from closeloop.sandbox.workspaces.workspace_pool import Workspace, WorkspacePool

__all__ = [
    "SandboxLimits",
    "UnreadableChange",
    "Workspace",
    "WorkspaceBase",
    "WorkspacePool",
    "resolve_commit",
]
