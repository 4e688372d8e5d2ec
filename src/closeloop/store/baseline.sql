-- The schema of the first release, in the order in which tables refer to each other.
-- {number}, {text}, {bytes} and {latest} are written as each engine has them.


-- Tasks, variants, experiments, attempts, grades and jobs.

CREATE TABLE closeloop_migrations (number BIGINT NOT NULL PRIMARY KEY);

CREATE TABLE blobs (
    digest {text} NOT NULL PRIMARY KEY,
    body {bytes} NOT NULL
);

CREATE TABLE tasks (
    number {number},
    digest {text} NOT NULL,
    grading {text} NOT NULL,
    id {text} NOT NULL,
    split {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX tasks_by_digest ON tasks (digest, number);

CREATE TABLE prompts (
    number {number},
    id {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX prompts_by_id ON prompts (id, number);

-- The system prompt that an attempt was seen to run under.
CREATE TABLE attempt_prompts (
    number {number},
    attempt {text} NOT NULL,
    prompt {text} NOT NULL,
    source {text} NOT NULL
);

CREATE UNIQUE INDEX attempt_prompts_by_attempt ON attempt_prompts (attempt);

CREATE INDEX attempt_prompts_by_prompt ON attempt_prompts (prompt);

-- Since when the work of an agent that names no prompt runs under one.
CREATE TABLE prompt_rollouts (
    number {number},
    prompt {text} NOT NULL,
    agent {text} NOT NULL,
    repo {text},
    since BIGINT NOT NULL
);

CREATE TABLE variants (
    number {number},
    digest {text} NOT NULL,
    name {text} NOT NULL,
    agent {text} NOT NULL,
    model {text},
    body {bytes} NOT NULL
);

CREATE INDEX variants_by_digest ON variants (digest, number);

CREATE TABLE experiments (
    number {number},
    id {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX experiments_by_id ON experiments (id, number);

CREATE TABLE proofs (
    number {number},
    grading {text} NOT NULL,
    task {text} NOT NULL,
    state {text} NOT NULL,
    before {text} REFERENCES blobs (digest),
    reference {text} REFERENCES blobs (digest),
    body {bytes} NOT NULL
);

CREATE INDEX proofs_by_grading ON proofs (grading, number);

CREATE TABLE attempts (
    id {text} NOT NULL PRIMARY KEY,
    origin {text} NOT NULL,
    title {text},
    detail {text},
    task {text},
    task_digest {text},
    variant {text},
    experiment {text},
    number BIGINT NOT NULL,
    retry BIGINT NOT NULL,
    parent {text},
    exit {text} NOT NULL,
    cause {text},
    started BIGINT,
    ended BIGINT,
    seconds DOUBLE PRECISION,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cache_read_tokens BIGINT,
    cache_write_tokens BIGINT,
    cost DOUBLE PRECISION,
    lanes BIGINT,
    turns BIGINT,
    events BIGINT,
    files_changed BIGINT,
    lines_added BIGINT,
    lines_removed BIGINT,
    "user" {text}
);

CREATE INDEX attempts_by_key ON attempts (task_digest, variant, number, retry);

CREATE INDEX attempts_by_task ON attempts (task, started {latest}, id);

CREATE INDEX attempts_by_variant ON attempts (variant, started {latest}, id);

CREATE INDEX attempts_by_experiment ON attempts (experiment, started {latest}, id);

CREATE INDEX attempts_by_start ON attempts (started {latest}, id);

CREATE INDEX attempts_by_cost ON attempts (cost {latest}, id);

CREATE INDEX attempts_by_turns ON attempts (turns {latest}, id);

CREATE INDEX attempts_by_seconds ON attempts (seconds {latest}, id);

-- The trace comes last: SQLite reads past whatever stands before a column.
CREATE TABLE attempt_bodies (
    attempt {text} NOT NULL PRIMARY KEY REFERENCES attempts (id),
    body {bytes} NOT NULL,
    change {bytes},
    trace {bytes}
);

CREATE TABLE grades (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    grading {text} NOT NULL,
    version BIGINT NOT NULL,
    outcome {text} NOT NULL,
    outcome_cause {text},
    reason {text},
    broken BIGINT NOT NULL,
    out_of_scope BIGINT NOT NULL,
    asked BOOLEAN,
    fixed BOOLEAN,
    files_precision DOUBLE PRECISION,
    files_recall DOUBLE PRECISION,
    similarity DOUBLE PRECISION,
    before {text} REFERENCES blobs (digest),
    body {bytes} NOT NULL
);

CREATE INDEX grades_by_attempt ON grades (attempt, version, number);

CREATE TABLE jobs (
    key {text} NOT NULL PRIMARY KEY,
    owner {text},
    leased_until DOUBLE PRECISION,
    state {text} NOT NULL CHECK (state IN ('claimed', 'finished'))
);

CREATE INDEX jobs_in_hand ON jobs (owner) WHERE state = 'claimed';


-- Sessions that agents recorded, the files they came from, and spans that were sent.

-- One session may be stored again when it has grown: its versions share a key.
CREATE TABLE sessions (
    number {number},
    attempt {text} NOT NULL UNIQUE REFERENCES attempts (id),
    key {text} NOT NULL,
    agent {text} NOT NULL,
    model {text},
    repo {text},
    branch {text},
    body {bytes} NOT NULL
);

CREATE INDEX sessions_by_key ON sessions (key, number);

CREATE INDEX sessions_by_branch ON sessions (branch);

CREATE TABLE imports (
    number {number},
    path {text} NOT NULL,
    size BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    parts {bytes},
    reader {text},
    version BIGINT NOT NULL,
    sessions BIGINT NOT NULL
);

CREATE INDEX imports_by_path ON imports (path, number);

CREATE TABLE spans (
    number {number},
    trace {text} NOT NULL,
    conversation {text},
    digest {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX spans_by_trace ON spans (trace, digest);

CREATE INDEX spans_by_conversation ON spans (conversation, trace);


-- What the rules say of attempts; and attempts that later ones are held against.

-- The same attempt is measured again when rules, thresholds or its grade change.
CREATE TABLE measurements (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    basis {text} NOT NULL,
    findings BIGINT NOT NULL,
    found {text} NOT NULL,
    category {text},
    modes {text} NOT NULL,
    examined {text},
    modules BIGINT,
    opened_precision DOUBLE PRECISION,
    opened_recall DOUBLE PRECISION,
    context_tokens BIGINT,
    drift_slope DOUBLE PRECISION,
    iterations BIGINT NOT NULL,
    converged_after BIGINT,
    handoff_hits FLOAT,
    handoff_of BIGINT,
    feedback_hits FLOAT,
    feedback_of BIGINT,
    recovery_hits FLOAT,
    recovery_of BIGINT,
    convergence_hits FLOAT,
    convergence_of BIGINT,
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX measurements_by_attempt ON measurements (attempt, basis);

CREATE INDEX measurements_by_findings ON measurements (findings DESC, attempt);

CREATE TABLE baselines (
    number {number},
    name {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX baselines_by_name ON baselines (name, number);

-- What `closeloop gate` saw, each time it ran.
CREATE TABLE gate_reports (
    number {number},
    at BIGINT NOT NULL,
    experiment {text} NOT NULL,
    passed BOOLEAN NOT NULL,
    body {bytes} NOT NULL
);


-- Which texts attempts can be found by; the index of their words is made as each engine has it.

CREATE TABLE search_documents (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    kind {text} NOT NULL,
    digest {text} NOT NULL
);

CREATE INDEX search_documents_by_attempt ON search_documents (attempt, kind);


-- What attempts asked their models, and what came back.

-- A request is the digests of its pieces, 32 bytes each: an agent sends most of them again.
CREATE TABLE exchanges (
    attempt {text} NOT NULL REFERENCES attempts (id),
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    path {text} NOT NULL,
    status BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    first_byte_seconds DOUBLE PRECISION,
    retries BIGINT NOT NULL,
    model {text},
    input_tokens BIGINT,
    output_tokens BIGINT,
    cache_read_tokens BIGINT,
    cache_write_tokens BIGINT,
    cost DOUBLE PRECISION,
    cause {text},
    response {text} NOT NULL REFERENCES blobs (digest),
    request {bytes} NOT NULL,
    body {bytes} NOT NULL,
    PRIMARY KEY (attempt, number)
);


-- What agents say they lacked; and whether an experiment may go on.

CREATE TABLE insights (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    repo {text},
    type {text} NOT NULL,
    text {text} NOT NULL,
    at BIGINT NOT NULL
);

CREATE UNIQUE INDEX insights_by_attempt ON insights (attempt, type);

CREATE INDEX insights_by_repo ON insights (repo, at);

-- The newest row says whether it is paused.
CREATE TABLE pauses (
    number {number},
    experiment {text} NOT NULL,
    paused BOOLEAN NOT NULL
);

CREATE INDEX pauses_by_experiment ON pauses (experiment, number);


-- What became of changes among people; and whose work an attempt is.

-- Of an attempt the newest row counts.
CREATE TABLE deliveries (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    at BIGINT NOT NULL,
    passed BOOLEAN,
    merged BOOLEAN,
    corrected BOOLEAN,
    reviewed BOOLEAN,
    seconds_in_review FLOAT,
    cycles BIGINT,
    regressed BOOLEAN,
    files BIGINT,
    modules BIGINT,
    dependents BIGINT,
    risk {text},
    first_review BOOLEAN,
    first_push BOOLEAN,
    comments BIGINT,
    seconds_to_open FLOAT,
    repeated BIGINT,
    repeated_unconfirmed BIGINT
);

CREATE INDEX deliveries_by_attempt ON deliveries (attempt, number);


-- Who looked at the held-out tasks, when, and why.

CREATE TABLE looks (
    number {number},
    at BIGINT NOT NULL,
    tasks {text} NOT NULL,
    change {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX looks_by_tasks ON looks (tasks, number);


-- What judges said of outputs, what people said of the same, and how far the two agree.

CREATE TABLE judges (
    number {number},
    id {text} NOT NULL,
    rubric {text} NOT NULL,
    model {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX judges_by_id ON judges (id, number);

CREATE TABLE evaluations (
    number {number},
    id {text} NOT NULL,
    at BIGINT,
    attempt {text} REFERENCES attempts (id),
    task {text} NOT NULL,
    judge {text} NOT NULL,
    passed BOOLEAN,
    score FLOAT,
    completeness FLOAT,
    quality FLOAT,
    relevance FLOAT,
    same_family BOOLEAN,
    issues BIGINT NOT NULL,
    seconds FLOAT NOT NULL,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cost FLOAT,
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX evaluations_by_id ON evaluations (id);

CREATE INDEX evaluations_by_attempt ON evaluations (attempt, number);

CREATE INDEX evaluations_by_judge ON evaluations (judge, number);

CREATE TABLE preferences (
    number {number},
    judge {text} NOT NULL,
    task {text} NOT NULL,
    winner {text},
    flipped BOOLEAN NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX preferences_by_judge ON preferences (judge, number);

CREATE TABLE labels (
    number {number},
    item {text} NOT NULL,
    rubric {text} NOT NULL,
    asked {text} NOT NULL,
    label {text} NOT NULL,
    person {text} NOT NULL,
    golden BOOLEAN NOT NULL,
    at BIGINT
);

CREATE INDEX labels_by_rubric ON labels (rubric, item, asked, person, golden, number);

CREATE TABLE calibrations (
    number {number},
    judge {text} NOT NULL,
    rubric {text} NOT NULL,
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX calibrations_by_judge ON calibrations (judge, number);

CREATE TABLE analyses (
    number {number},
    name {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX analyses_by_name ON analyses (name, number);

-- An answer is asked for once: of one attempt, by one judge.
CREATE TABLE answers (
    number {number},
    judge {text} NOT NULL,
    attempt {text} NOT NULL REFERENCES attempts (id),
    verdict {text},
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX answers_once ON answers (judge, attempt);


-- Variants that share the work in production, and which piece fell to which.

CREATE TABLE trials (
    number {number},
    name {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX trials_by_name ON trials (name);

CREATE TABLE assignments (
    number {number},
    trial {text} NOT NULL REFERENCES trials (name),
    key {text} NOT NULL,
    variant {text} NOT NULL,
    at BIGINT NOT NULL
);

CREATE UNIQUE INDEX assignments_by_key ON assignments (trial, key);


-- Orchestrated plans, what their tasks were worth, and every execution of them.

-- A row when a plan begins, and one whenever it ends: the newest counts.
CREATE TABLE orchestrator_plans (
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
);

CREATE INDEX orchestrator_plans_by_id ON orchestrator_plans (id, number);

-- A row for every verdict on a try; try 0 is a task that nobody tried.
CREATE TABLE plan_tasks (
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
    duration FLOAT,
    body {bytes} NOT NULL
);

CREATE INDEX plan_tasks_by_plan ON plan_tasks (plan, task, try, number);

CREATE TABLE subagent_executions (
    number {number},
    plan {text} NOT NULL,
    task {text} NOT NULL,
    try BIGINT NOT NULL,
    agent {text} NOT NULL,
    model {text},
    exit {text} NOT NULL,
    started BIGINT NOT NULL,
    duration FLOAT,
    prompt_tokens BIGINT,
    completion_tokens BIGINT,
    cost FLOAT,
    body {bytes} NOT NULL,
    trace {bytes},
    exchanges {bytes}
);

CREATE UNIQUE INDEX subagent_executions_once ON subagent_executions (plan, task, try);

-- Tries that the machine did not lose, each with how many came before it.
CREATE VIEW plan_task_tries AS
SELECT e.plan, e.task, e.try, e.cost, e.duration, (
    SELECT COUNT(*) FROM subagent_executions n
    WHERE n.plan = e.plan AND n.task = e.task AND n.try < e.try AND n.exit <> 'machine'
) AS tried_before
FROM subagent_executions e
WHERE e.exit <> 'machine';

CREATE VIEW plan_task_verdicts AS
SELECT t.*, r.tried_before FROM plan_tasks t
JOIN plan_task_tries r ON r.plan = t.plan AND r.task = t.task AND r.try = t.try
WHERE t.number = (
    SELECT MAX(n.number) FROM plan_tasks n
    WHERE n.plan = t.plan AND n.task = t.task AND n.try = t.try
);

CREATE VIEW plan_task_finals AS
SELECT v.* FROM plan_task_verdicts v
WHERE v.try = (
    SELECT MAX(n.try) FROM plan_task_verdicts n WHERE n.plan = v.plan AND n.task = v.task
);

-- Scores of different judges are never averaged: where there are several, there is no mean.
-- A task without a score, such as one whose command fails, leaves mean and weakest unknown.
-- Plans that nobody judged come by themselves: so one plan's grade takes no look at the others.
CREATE VIEW plan_grades AS
SELECT p.id AS plan, p.at, p.state, p.overall_pass, p.tasks,
    COUNT(f.task) AS judged,
    SUM(CASE WHEN f.pass THEN 1 ELSE 0 END) AS passed,
    CASE WHEN COUNT(DISTINCT j.judge) < 2 AND COUNT(f.score) = COUNT(*)
        THEN AVG(f.score) END AS score,
    CASE WHEN COUNT(f.score) = COUNT(*) THEN MIN(f.score) END AS weakest,
    CASE
        WHEN NOT p.overall_pass THEN 'F'
        WHEN p.overall_pass IS NULL OR COUNT(f.score) < COUNT(*) THEN NULL
        WHEN MIN(f.score) >= 0.9 THEN 'A'
        WHEN MIN(f.score) >= 0.8 THEN 'B'
        ELSE 'C'
    END AS grade
FROM orchestrator_plans p
JOIN plan_task_finals f ON f.plan = p.id
LEFT JOIN evaluations j ON j.id = f.evaluation
WHERE p.number = (SELECT MAX(n.number) FROM orchestrator_plans n WHERE n.id = p.id)
GROUP BY p.id, p.at, p.state, p.overall_pass, p.tasks
UNION ALL
SELECT p.id, p.at, p.state, p.overall_pass, p.tasks, 0, 0, NULL, NULL,
    CASE WHEN NOT p.overall_pass THEN 'F' END
FROM orchestrator_plans p
WHERE p.number = (SELECT MAX(n.number) FROM orchestrator_plans n WHERE n.id = p.id)
    AND NOT EXISTS (SELECT 1 FROM plan_task_finals f WHERE f.plan = p.id);

CREATE VIEW plan_grade_trend AS
SELECT at / 86400000000 AS day, grade, overall_pass, COUNT(*) AS plans
FROM plan_grades
WHERE state = 'ended'
GROUP BY at / 86400000000, grade, overall_pass;

-- Days are counted from 1970, as engines differ in how they write dates.
CREATE VIEW plan_quality_trend AS
SELECT v.at / 86400000000 AS day, j.judge,
    COUNT(*) AS judged,
    AVG(CASE WHEN v.pass THEN 1.0 WHEN NOT v.pass THEN 0.0 END) AS pass_rate,
    AVG(CASE WHEN v.tried_before > 0 THEN NULL
        WHEN v.pass THEN 1.0 WHEN NOT v.pass THEN 0.0 END) AS first_try_rate,
    AVG(v.score) AS score, AVG(v.completeness) AS completeness,
    AVG(v.quality) AS quality, AVG(v.relevance) AS relevance,
    SUM(CASE WHEN v.pass THEN 1 ELSE 0 END) AS passes, COUNT(v.pass) AS verdicts,
    SUM(CASE WHEN v.pass AND v.tried_before = 0 THEN 1 ELSE 0 END) AS first_passes,
    COUNT(CASE WHEN v.tried_before = 0 THEN v.pass END) AS first_verdicts
FROM plan_task_verdicts v
LEFT JOIN evaluations j ON j.id = v.evaluation
GROUP BY v.at / 86400000000, j.judge;

CREATE VIEW plan_tokens AS
SELECT plan, task, agent, model, COUNT(*) AS executions,
    SUM(prompt_tokens) AS prompt_tokens, SUM(completion_tokens) AS completion_tokens,
    SUM(cost) AS cost
FROM subagent_executions
GROUP BY plan, task, agent, model;

CREATE VIEW plan_durations AS
SELECT plan, task, COUNT(*) AS executions, SUM(duration) AS duration,
    MAX(duration) AS longest
FROM subagent_executions
GROUP BY plan, task;

-- Its cost is of work and judging; it is not known where that of the work is not.
CREATE VIEW plan_retries AS
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
GROUP BY r.plan, r.task;


-- Pull requests, deliveries of webhooks and the log of events.

CREATE TABLE arrivals (
    number {number},
    source {text} NOT NULL,
    delivery {text} NOT NULL,
    event {text} NOT NULL,
    at BIGINT NOT NULL
);

CREATE UNIQUE INDEX arrivals_by_delivery ON arrivals (delivery, source);

-- What has not been read yet: the only one of these whose rows go away.
CREATE TABLE inbox (
    number {number},
    source {text} NOT NULL,
    event {text} NOT NULL,
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE TABLE pull_facts (
    number {number},
    source {text} NOT NULL,
    repo {text} NOT NULL,
    key {text} NOT NULL,
    pull BIGINT,
    sha {text},
    branch {text},
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX pull_facts_by_key ON pull_facts (repo, key);

CREATE INDEX pull_facts_by_pull ON pull_facts (repo, pull);

CREATE INDEX pull_facts_by_sha ON pull_facts (repo, sha);

CREATE INDEX pull_facts_by_branch ON pull_facts (repo, branch);

-- What the facts say now, to search and list by: made again from them at any time.
CREATE TABLE pulls (
    repo {text} NOT NULL,
    pull BIGINT NOT NULL,
    source {text} NOT NULL,
    title {text} NOT NULL,
    url {text},
    author {text},
    asked_by {text},
    agent {text},
    attempt {text},
    task {text},
    prompt {text},
    state {text} NOT NULL,
    draft BOOLEAN NOT NULL,
    branch {text},
    head {text},
    merge_commit {text},
    opened BIGINT NOT NULL,
    closed BIGINT,
    told BIGINT NOT NULL,
    rounds BIGINT NOT NULL,
    comments BIGINT NOT NULL,
    edits BIGINT NOT NULL,
    pointers BIGINT NOT NULL,
    first_push {text},
    last_push {text},
    risk {text},
    reviewed BOOLEAN NOT NULL,
    files BIGINT,
    added BIGINT,
    removed BIGINT,
    has_change BOOLEAN NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (repo, pull)
);

CREATE INDEX pulls_by_branch ON pulls (repo, branch);

CREATE INDEX pulls_by_merge_commit ON pulls (repo, merge_commit);

CREATE INDEX pulls_by_attempt ON pulls (attempt);

CREATE INDEX pulls_by_opened ON pulls (opened);

-- The diffs of pull requests, as their host or a clone had them at one commit.
CREATE TABLE pull_changes (
    number {number},
    repo {text} NOT NULL,
    pull BIGINT NOT NULL,
    head {text} NOT NULL,
    at BIGINT NOT NULL,
    files BIGINT NOT NULL,
    added BIGINT,
    removed BIGINT,
    body {bytes} NOT NULL
);

CREATE UNIQUE INDEX pull_changes_by_head ON pull_changes (repo, pull, head);

-- Addresses that recordings of work name, such as that of a pull request.
CREATE TABLE links (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    address {text} NOT NULL
);

CREATE INDEX links_by_address ON links (address);

CREATE TABLE events (
    number {number},
    at BIGINT NOT NULL,
    kind {text} NOT NULL,
    repo {text},
    pull BIGINT,
    task {text},
    attempt {text},
    details {text} NOT NULL
);

-- How far somebody has come: a webhook through the log, a backfill through a repository.
CREATE TABLE places (
    name {text} NOT NULL PRIMARY KEY,
    place {text} NOT NULL
);


-- Reviews, corrections, rules and what agents were told of them.

CREATE TABLE learned_rules (
    number {number},
    id {text} NOT NULL,
    repo {text},
    state {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX learned_rules_by_id ON learned_rules (id, number);

CREATE TABLE rule_examples (
    number {number},
    rule {text} NOT NULL,
    key {text} NOT NULL,
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX rule_examples_by_key ON rule_examples (rule, key, number);

CREATE TABLE vectors (
    encoder {text} NOT NULL,
    digest {text} NOT NULL,
    body {bytes} NOT NULL,
    PRIMARY KEY (encoder, digest)
);

CREATE TABLE repeats (
    number {number},
    key {text} NOT NULL,
    rule {text} NOT NULL,
    repo {text} NOT NULL,
    pull BIGINT,
    attempt {text},
    state {text} NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX repeats_by_key ON repeats (key, rule, number);

CREATE INDEX repeats_by_pull ON repeats (repo, pull);

CREATE TABLE offers (
    number {number},
    key {text} NOT NULL,
    repo {text} NOT NULL,
    arm {text} NOT NULL,
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX offers_by_key ON offers (repo, key, number);

CREATE TABLE corrections (
    number {number},
    id {text} NOT NULL,
    repo {text} NOT NULL,
    pull BIGINT,
    attempt {text},
    kind {text} NOT NULL,
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX corrections_by_id ON corrections (id, number);

CREATE INDEX corrections_by_pull ON corrections (repo, pull);

CREATE TABLE human_reviews (
    number {number},
    item {text} NOT NULL,
    reviewer {text} NOT NULL,
    state {text} NOT NULL,
    merge BOOLEAN,
    at BIGINT NOT NULL,
    body {bytes} NOT NULL
);

CREATE INDEX human_reviews_by_item ON human_reviews (item, reviewer, number);

CREATE TABLE review_assignments (
    number {number},
    item {text} NOT NULL,
    reviewer {text} NOT NULL,
    at BIGINT NOT NULL,
    asked BOOLEAN NOT NULL
);

CREATE INDEX review_assignments_by_item ON review_assignments (item, number);


-- Tokens of the dashboard, logins by them, what no longer holds; and what its lists search by.

CREATE TABLE tokens (
    number {number},
    id {text} NOT NULL,
    name {text} NOT NULL,
    scopes {text} NOT NULL,
    hash {text} NOT NULL,
    at BIGINT NOT NULL
);

CREATE UNIQUE INDEX tokens_by_id ON tokens (id);

CREATE UNIQUE INDEX tokens_by_hash ON tokens (hash);

CREATE TABLE logins (
    number {number},
    hash {text} NOT NULL,
    token {text} NOT NULL,
    until BIGINT NOT NULL
);

CREATE UNIQUE INDEX logins_by_hash ON logins (hash);

-- Of a token by its id, or of a login by its hash.
CREATE TABLE revocations (
    number {number},
    revoked {text} NOT NULL,
    at BIGINT NOT NULL
);

CREATE UNIQUE INDEX revocations_once ON revocations (revoked);

CREATE INDEX attempts_by_user ON attempts ("user", started {latest}, id);

CREATE INDEX sessions_by_repo ON sessions (repo, attempt);

CREATE INDEX sessions_by_agent ON sessions (agent, attempt);

CREATE INDEX measurements_by_category ON measurements (category, attempt);


-- What `closeloop check` said of changes.

CREATE TABLE reports (
    number {number},
    at BIGINT NOT NULL,
    repo {text},
    title {text} NOT NULL,
    base {text},
    head {text},
    attempt {text} REFERENCES attempts (id),
    level {text},
    why {text},
    verdict {text} NOT NULL,
    findings BIGINT NOT NULL,
    modes {text},
    examined {text},
    body {bytes} NOT NULL
);

CREATE INDEX reports_by_attempt ON reports (attempt);

CREATE INDEX reports_by_repo ON reports (repo);


-- What tests, rules, judges, people and code say of attempts, name by name.

CREATE TABLE scores (
    number {number},
    attempt {text} NOT NULL REFERENCES attempts (id),
    name {text} NOT NULL,
    value DOUBLE PRECISION,
    label {text},
    source {text} NOT NULL,
    version {text} NOT NULL,
    who {text} NOT NULL,
    at BIGINT NOT NULL,
    note {text} NOT NULL
);

CREATE INDEX scores_by_name ON scores (name, source, attempt, number, who, value);

CREATE INDEX scores_by_attempt ON scores (attempt, name);


-- Exact patches apart from the form that is shown, and what was purged.

CREATE TABLE private_bodies (
    owner {text} NOT NULL PRIMARY KEY,
    body {bytes} NOT NULL
);

CREATE TABLE purges (
    number {number},
    at BIGINT NOT NULL,
    who {text} NOT NULL,
    kind {text} NOT NULL,
    records BIGINT NOT NULL,
    places {text} NOT NULL,
    digest {text} NOT NULL
);
