"""The names of `closeloop`, for editors and type checkers."""

from closeloop.api import Project as Project
from closeloop.api import ResultTable as ResultTable
from closeloop.api import check as check
from closeloop.api import compare as compare
from closeloop.api import measure as measure
from closeloop.api import open as open  # noqa: A004
from closeloop.api import read as read
from closeloop.api import read_all as read_all
from closeloop.contracts import check_agent as check_agent
from closeloop.contracts import check_scorer as check_scorer
from closeloop.records.attempt import Attempt as Attempt
from closeloop.records.attempt import Grade as Grade
from closeloop.records.change import Change as Change
from closeloop.records.change import ChangeReport as ChangeReport
from closeloop.records.errors import BadInput as BadInput
from closeloop.records.errors import Fault as Fault
from closeloop.records.errors import MachineFailed as MachineFailed
from closeloop.records.errors import PluginFailed as PluginFailed
from closeloop.records.estimate import CompareReport as CompareReport
from closeloop.records.finding import Measurement as Measurement
from closeloop.records.protocols import Agent as Agent
from closeloop.records.protocols import Assignment as Assignment
from closeloop.records.protocols import ScoredAttempt as ScoredAttempt
from closeloop.records.protocols import Work as Work
from closeloop.records.score import Score as Score
from closeloop.records.score import ScoreDefinition as ScoreDefinition
from closeloop.records.task import Task as Task
from closeloop.records.task import Variant as Variant
from closeloop.records.trace import Session as Session
from closeloop.records.trace import Trace as Trace
from closeloop.store.store import open_store as open_store
from closeloop.tasks.task_files import load_tasks as load_tasks
from closeloop.traces.recording import record as record
from closeloop.traces.recording import recording as recording

__version__: str
__all__: list[str]
