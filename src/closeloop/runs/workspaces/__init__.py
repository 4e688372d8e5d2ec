"""Workspaces: a fresh copy of a repository for every attempt, and what changed in it."""

from closeloop.runs.sandbox.place import Guards
from closeloop.runs.workspaces.bases import Base
from closeloop.runs.workspaces.patches import Unreadable
from closeloop.runs.workspaces.repository import resolve_commit
from closeloop.runs.workspaces.workspace import Workspace, Workspaces

__all__ = ["Base", "Guards", "Unreadable", "Workspace", "Workspaces", "resolve_commit"]
