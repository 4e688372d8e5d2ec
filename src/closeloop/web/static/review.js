// The review queue by keyboard alone: a key answers the question that is asked, and goes on.

const form = document.querySelector("form[data-review]");

/** Questions in their order; `at` is the one that is asked, past the last when all are behind. */
const steps = [...(form?.querySelectorAll("[data-step]") ?? [])];
let at = 0;

function ask(place, shown = true) {
  at = Math.max(0, place);
  const folded = shown && steps[at]?.closest("details");
  if (folded) folded.open = true;
  steps.forEach((step, number) => step.classList.toggle("asked", number === at));
  if (shown) (steps[at] ?? form.querySelector("button.send")).scrollIntoView({ block: "nearest" });
}

function firstOpen() {
  const open = steps.findIndex((step) => !step.querySelector(":checked"));
  return open < 0 ? steps.length : open;
}

/** What is chosen already does not change, and yet one goes on. */
function choose(answer) {
  const before = at;
  answer.click();
  if (at === before) ask(at + 1);
}

/** Everything that is open is well, and nothing went wrong: said, and sent, without drafts. */
function allGood() {
  for (const step of steps) {
    if (!step.querySelector(":checked")) step.querySelector(`[value="${step.dataset.good}"]`).checked = true;
  }
  for (const tag of form.querySelectorAll("[data-tag]:checked")) tag.checked = false;
  form.requestSubmit();
}

/** Parts of what is asked about, then of what stands beside it. */
function askedFirst(part) {
  return [".side.asked", ".side:not(.asked)"].flatMap((side) => [...document.querySelectorAll(`${side} ${part}`)]);
}

/** The next trace that is still closed, then none is open. */
function trace() {
  const traces = askedFirst("[data-trace]");
  const closed = traces.find((each) => !each.open);
  if (closed) {
    closed.open = true;
    closed.scrollIntoView({ block: "start" });
  } else {
    for (const each of traces) each.open = false;
  }
}

function evidence() {
  const files = askedFirst("[data-evidence]");
  const next = files[(files.indexOf(document.activeElement) + 1) % files.length];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "start" });
}

function hear(event) {
  if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]")) return;
  const writes = event.target.matches?.("textarea, select, input:not([type=radio], [type=checkbox])");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    form.requestSubmit();
    return;
  }
  if (event.key === "Escape" && writes) event.target.blur();
  if (writes || event.ctrlKey || event.metaKey) return;
  const answer = steps[at]?.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  const tag = form.querySelector(`[data-tag="${CSS.escape(event.key)}"]`);
  const action = answer ? () => choose(answer)
    : tag ? () => tag.click()
    : {
      a: allGood,
      b: () => ask(at - 1),
      d: evidence,
      t: trace,
      w: () => form.querySelector("textarea").focus(),
      Enter: () => {
        if (event.target.closest?.("a, button, summary")) return;
        if (at >= steps.length) form.requestSubmit();
        else if (steps[at].matches("[data-optional]") || steps[at].querySelector(":checked")) ask(at + 1);
      },
    }[event.key];
  if (!action || (event.key === "Enter" && event.target.closest?.("a, button, summary"))) return;
  event.preventDefault();
  action();
}

if (form) {
  document.addEventListener("keydown", hear);
  const good = form.querySelector("[data-all-good]");
  good.hidden = false;
  good.addEventListener("click", allGood);
  form.addEventListener("change", (event) => {
    const step = steps.indexOf(event.target.closest("[data-step]"));
    if (step >= 0 && step >= at) ask(step + 1);
  });
  // First the change is to be seen.
  ask(firstOpen(), false);
}
