"""Orchestrated plans, what their tasks were worth, and every execution of them.

The names of tables and of their main columns are those that orchestrators expect. Moments are
microseconds since 1970, durations seconds, costs US dollars.
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    # A row when a plan begins, and one whenever it ends: the newest counts.
    """CREATE TABLE orchestrator_plans (
        number {number},
        id {text} NOT NULL,
        at BIGINT NOT NULL,
        state {text} NOT NULL,
        request {text} NOT NULL,
        tasks BIGINT NOT NULL,
        overall_pass BOOLEAN,
        summary {text},
        attempt {text} REFERENCES attempts (id),
        prompt_tokens BIGINT,
        completion_tokens BIGINT,
        cost FLOAT,
        duration FLOAT,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX orchestrator_plans_by_id ON orchestrator_plans (id, number)",
    # A row for every verdict on a try; try 0 is a task that nobody tried.
    """CREATE TABLE plan_tasks (
        number {number},
        plan {text} NOT NULL,
        task {text} NOT NULL,
        try BIGINT NOT NULL,
        at BIGINT NOT NULL,
        pass BOOLEAN,
        score FLOAT,
        completeness FLOAT,
        quality FLOAT,
        relevance FLOAT,
        issues {text} NOT NULL,
        ignored_feedback BOOLEAN NOT NULL,
        evaluation {text},
        prompt_tokens BIGINT,
        completion_tokens BIGINT,
        cost FLOAT,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX plan_tasks_by_plan ON plan_tasks (plan, task, try, number)",
    """CREATE TABLE subagent_executions (
        number {number},
        plan {text} NOT NULL,
        task {text} NOT NULL,
        try BIGINT NOT NULL,
        agent {text} NOT NULL,
        model {text},
        exit {text} NOT NULL,
        started BIGINT NOT NULL,
        duration FLOAT NOT NULL,
        prompt_tokens BIGINT,
        completion_tokens BIGINT,
        cost FLOAT,
        body {bytes} NOT NULL,
        trace {bytes},
        exchanges {bytes}
    )""",
    "CREATE UNIQUE INDEX subagent_executions_once ON subagent_executions (plan, task, try)",
    # Tries that the machine did not lose, each with how many came before it.
    """CREATE VIEW plan_task_tries AS
        SELECT e.plan, e.task, e.try, e.cost, e.duration, (
            SELECT COUNT(*) FROM subagent_executions n
            WHERE n.plan = e.plan AND n.task = e.task AND n.try < e.try AND n.exit <> 'machine'
        ) AS tried_before
        FROM subagent_executions e
        WHERE e.exit <> 'machine'""",
    """CREATE VIEW plan_task_verdicts AS
        SELECT t.*, r.tried_before FROM plan_tasks t
        JOIN plan_task_tries r ON r.plan = t.plan AND r.task = t.task AND r.try = t.try
        WHERE t.number = (
            SELECT MAX(n.number) FROM plan_tasks n
            WHERE n.plan = t.plan AND n.task = t.task AND n.try = t.try
        )""",
    """CREATE VIEW plan_task_finals AS
        SELECT v.* FROM plan_task_verdicts v
        WHERE v.try = (
            SELECT MAX(n.try) FROM plan_task_verdicts n WHERE n.plan = v.plan AND n.task = v.task
        )""",
    # Scores of different judges are never averaged: where there are several, there is no mean.
    """CREATE VIEW plan_grades AS
        SELECT p.id AS plan, p.at, p.overall_pass, p.tasks,
            COUNT(f.task) AS judged,
            SUM(CASE WHEN f.pass THEN 1 ELSE 0 END) AS passed,
            CASE WHEN COUNT(DISTINCT j.judge) < 2 THEN AVG(f.score) END AS score,
            MIN(f.score) AS weakest,
            CASE
                WHEN NOT p.overall_pass THEN 'F'
                WHEN p.overall_pass IS NULL OR MIN(f.score) IS NULL THEN NULL
                WHEN MIN(f.score) >= 0.9 THEN 'A'
                WHEN MIN(f.score) >= 0.8 THEN 'B'
                ELSE 'C'
            END AS grade
        FROM orchestrator_plans p
        LEFT JOIN plan_task_finals f ON f.plan = p.id
        LEFT JOIN evaluations j ON j.id = f.evaluation
        WHERE p.number = (SELECT MAX(n.number) FROM orchestrator_plans n WHERE n.id = p.id)
        GROUP BY p.id, p.at, p.overall_pass, p.tasks""",
    # Days are counted from 1970, as engines differ in how they write dates.
    """CREATE VIEW plan_quality_trend AS
        SELECT v.at / 86400000000 AS day, j.judge,
            COUNT(*) AS judged,
            AVG(CASE WHEN v.pass THEN 1.0 WHEN NOT v.pass THEN 0.0 END) AS pass_rate,
            AVG(CASE WHEN v.tried_before > 0 THEN NULL
                WHEN v.pass THEN 1.0 WHEN NOT v.pass THEN 0.0 END) AS first_try_rate,
            AVG(v.score) AS score, AVG(v.completeness) AS completeness,
            AVG(v.quality) AS quality, AVG(v.relevance) AS relevance
        FROM plan_task_verdicts v
        LEFT JOIN evaluations j ON j.id = v.evaluation
        GROUP BY v.at / 86400000000, j.judge""",
    """CREATE VIEW plan_tokens AS
        SELECT plan, task, agent, model, COUNT(*) AS executions,
            SUM(prompt_tokens) AS prompt_tokens, SUM(completion_tokens) AS completion_tokens,
            SUM(cost) AS cost
        FROM subagent_executions
        GROUP BY plan, task, agent, model""",
    """CREATE VIEW plan_durations AS
        SELECT plan, task, COUNT(*) AS executions, SUM(duration) AS duration,
            MAX(duration) AS longest
        FROM subagent_executions
        GROUP BY plan, task""",
    # Its cost is of work and judging; it is not known where that of the work is not.
    """CREATE VIEW plan_retries AS
        SELECT r.plan, r.task, COUNT(*) - 1 AS retries,
            CASE WHEN COUNT(*) = 1 THEN 0.0 ELSE SUM(
                CASE WHEN r.tried_before > 0 THEN r.cost + COALESCE(v.cost, 0) END
            ) END AS retry_cost,
            SUM(CASE WHEN r.tried_before > 0 THEN r.duration ELSE 0 END) AS retry_duration,
            SUM(CASE WHEN v.ignored_feedback THEN 1 ELSE 0 END) AS ignored_feedback,
            MAX(CASE WHEN r.tried_before = 0 AND v.pass THEN 1 ELSE 0 END) AS passed_first,
            MAX(CASE WHEN v.pass THEN 1 ELSE 0 END) AS passed
        FROM plan_task_tries r
        LEFT JOIN plan_task_verdicts v ON v.plan = r.plan AND v.task = r.task AND v.try = r.try
        GROUP BY r.plan, r.task""",
)
FACTS: tuple[str, ...] = ("orchestrator_plans", "plan_tasks", "subagent_executions")
