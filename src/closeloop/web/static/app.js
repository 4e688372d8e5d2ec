// Small custom elements; every page can be read without them.

const KEYS = [
  ["?", "this list"],
  ["/", "search or narrow"],
  ["j · k", "next and previous line"],
  ["n · p", "next and previous finding"],
  ["t", "light or dark"],
];

/** Turns the theme over, and remembers it. */
class ThemeSwitch extends HTMLElement {
  connectedCallback() {
    this.querySelector("button")?.addEventListener("click", () => this.turn());
  }
  turn() {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("closeloop-theme", root.dataset.theme);
    document.dispatchEvent(new CustomEvent("themechange"));
  }
}

/** A button that copies whatever text it is told of when it is pressed. */
function copyButton(textOf) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(textOf().trim());
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

/** A text with a button beside it that copies it; with `data-link`, a button that copies the address of this page. */
class CopyButton extends HTMLElement {
  connectedCallback() {
    if (this.querySelector(":scope > button")) return;
    const text = this.firstElementChild;
    const isLink = "link" in this.dataset;
    const button = copyButton(() => (isLink ? location.href : text?.textContent ?? ""));
    if (isLink) button.textContent = "Copy link";
    this.append(button);
  }
}

/** Keys: `g` and a letter opens a page, `?` lists them all. */
class KeyHelp extends HTMLElement {
  connectedCallback() {
    this.querySelector("button")?.addEventListener("click", () => this.list());
    this.heard = (event) => this.hear(event);
    document.addEventListener("keydown", this.heard);
  }
  disconnectedCallback() {
    document.removeEventListener("keydown", this.heard);
  }
  links() {
    return [...document.querySelectorAll("header.frame a[data-key]")];
  }
  /** The keys that this page uses for itself, each with what it does. */
  own() {
    return [...document.querySelectorAll("[data-keys]")].flatMap((each) =>
      each.dataset.keys.split(";").map((pair) => pair.split("=").map((part) => part.trim())));
  }
  hear(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (this.waiting) {
      this.waiting = false;
      event.preventDefault();
      this.links().find((link) => link.dataset.key === event.key)?.click();
      return;
    }
    if (this.own().some(([key]) => key === event.key)) {
      document.querySelector(`main [data-press="${CSS.escape(event.key)}"]`)?.click();
      return;
    }
    const action = {
      g: () => { this.waiting = true; setTimeout(() => { this.waiting = false; }, 1500); },
      "?": () => this.list(),
      "/": () => {
        const field = document.querySelector("main input[type=search]") ?? document.querySelector(".find input");
        field?.focus();
        field?.select();
      },
      t: () => document.querySelector("theme-switch")?.turn(),
      j: () => this.step(1),
      k: () => this.step(-1),
    }[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }
  step(by) {
    const rows = [...document.querySelectorAll("main .row-link")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at + by))].focus();
  }
  list() {
    let dialog = document.getElementById("keys");
    if (!dialog) {
      dialog = document.createElement("dialog");
      dialog.id = "keys";
      dialog.setAttribute("aria-label", "Keys");
      const list = document.createElement("dl");
      list.className = "facts";
      const own = this.own();
      const general = KEYS.filter(([key]) => !own.some(([taken]) => taken === key));
      const pages = this.links().map((link) => [`g ${link.dataset.key}`, link.textContent]);
      for (const [key, text] of [...general, ...own, ...pages]) {
        const term = document.createElement("dt");
        const named = document.createElement("kbd");
        named.textContent = key;
        term.append(named);
        const told = document.createElement("dd");
        told.textContent = text;
        list.append(term, told);
      }
      const title = document.createElement("h2");
      title.textContent = "Keys";
      const form = document.createElement("form");
      form.method = "dialog";
      const button = document.createElement("button");
      button.textContent = "Close";
      form.append(button);
      dialog.append(title, list, form);
      document.body.append(dialog);
    }
    dialog.open ? dialog.close() : dialog.showModal();
  }
}

/** Tells the page when the server has something that it does not show: `changed` on the body. */
class LiveUpdates extends HTMLElement {
  connectedCallback() {
    this.told = this.dataset.mark;
    this.tell = () => {
      // What asks just now may be replaced by the answer, which does not listen at once.
      const busy = document.querySelector(".htmx-request, .htmx-added");
      if (busy || document.hidden || this.told === this.dataset.mark) return;
      this.dataset.mark = this.told;
      document.body.dispatchEvent(new CustomEvent("changed"));
    };
    document.addEventListener("visibilitychange", this.tell);
    document.addEventListener("htmx:afterSettle", this.tell);
    // What asks again listens only when all scripts are there.
    if (document.readyState === "complete") this.listen();
    else addEventListener("load", () => this.listen(), { once: true });
  }
  listen() {
    this.source = new EventSource(this.getAttribute("src"));
    for (const name of ["here", "changed"]) {
      this.source.addEventListener(name, (event) => {
        this.told = event.data;
        this.tell();
      });
    }
  }
  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.tell);
    document.removeEventListener("htmx:afterSettle", this.tell);
    this.source?.close();
  }
}

/** The events of a trace: fragments come when they are near or named, keys go to findings. */
class TraceEvents extends HTMLElement {
  connectedCallback() {
    this.findings = [...new Set(this.dataset.findings.split(",").filter(Boolean).map(Number))].sort((a, b) => a - b);
    this.named = () => this.show(location.hash, true);
    this.heard = (event) => this.hear(event);
    this.pressed = (event) => this.press(event);
    this.addEventListener("pointerover", (event) => this.offer(event.target.closest?.("pre, .handed .prose")));
    this.addEventListener("toggle", (event) => this.offer(event.target.querySelector("pre, .handed .prose")), true);
    addEventListener("hashchange", this.named);
    document.addEventListener("keydown", this.heard);
    document.addEventListener("click", this.pressed);
    if (location.hash) this.named();
  }
  disconnectedCallback() {
    removeEventListener("hashchange", this.named);
    document.removeEventListener("keydown", this.heard);
    document.removeEventListener("click", this.pressed);
  }
  hear(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
    if (event.key === "n" || event.key === "p") this.jump(event.key === "n" ? 1 : -1);
  }
  press(event) {
    const button = event.target.closest?.("[data-jump], [data-fold]");
    if (button?.dataset.jump) this.jump(Number(button.dataset.jump));
    if (button?.dataset.fold) {
      for (const each of this.querySelectorAll("details")) each.open = button.dataset.fold === "open";
    }
  }
  offer(block) {
    if (!block || block.parentElement.closest("pre, .prose") || block.previousElementSibling?.matches(".copy")) return;
    block.before(copyButton(() => block.textContent));
  }
  jump(by) {
    const at = Number(/^#e(\d+)$/.exec(location.hash)?.[1] ?? (by > 0 ? 0 : Infinity));
    const next = by > 0 ? this.findings.find((each) => each > at) : this.findings.findLast((each) => each < at);
    if (next !== undefined) location.hash = `#e${next}`;
  }
  async show(hash, again) {
    const number = Number(/^#e(\d+)$/.exec(hash)?.[1]);
    if (!number) return;
    const here = document.getElementById(`e${number}`);
    if (here) {
      here.querySelector("details")?.setAttribute("open", "");
      here.scrollIntoView({ block: "start" });
      return;
    }
    const parts = [...this.querySelectorAll(".fragment")];
    const part = parts.findLast((each) => Number(each.dataset.first) <= number);
    if (!part || !again) return;
    part.scrollIntoView();
    part.addEventListener("htmx:afterSettle", () => {
      // The browser marks what an address names only when the address is set.
      history.replaceState(null, "", location.pathname + location.search);
      location.hash = hash;
      this.show(hash, false);
    }, { once: true });
    part.dispatchEvent(new CustomEvent("load-fragment"));
  }
}

/** The list of sessions: on a wide screen a line opens beside it, and two ticked ones are compared. */
class SessionList extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => this.open(event));
    this.addEventListener("change", () => this.count());
    this.count();
  }
  ticked() {
    return [...this.querySelectorAll("input[name=attempt]:checked")];
  }
  count() {
    const pick = document.getElementById("pick");
    if (pick) pick.hidden = this.ticked().length !== 2;
  }
  open(event) {
    const link = event.target.closest?.(".row-link");
    const beside = document.getElementById("beside");
    if (!link || !beside || !window.htmx || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (!matchMedia("(min-width: 1400px)").matches || !location.protocol.startsWith("http")) return;
    event.preventDefault();
    this.classList.add("opened");
    for (const row of this.querySelectorAll("tr[aria-current]")) row.removeAttribute("aria-current");
    link.closest("tr").setAttribute("aria-current", "true");
    const address = new URL(location.href);
    address.searchParams.set("open", link.dataset.id);
    history.replaceState(null, "", address);
    htmx.ajax("GET", `/attempts/${link.dataset.id}/preview`, { target: "#beside" });
  }
}

/** A field that hides the lines of a list which do not contain what is typed. */
class ListFilter extends HTMLElement {
  connectedCallback() {
    if (this.querySelector("input")) return;
    const field = document.createElement("input");
    field.type = "text";
    field.placeholder = this.dataset.label;
    field.setAttribute("aria-label", this.dataset.label);
    field.autocomplete = "off";
    this.told = document.createElement("span");
    this.told.className = "dim small";
    this.told.setAttribute("role", "status");
    this.append(field, this.told);
    field.addEventListener("input", () => this.narrow());
    document.body.addEventListener("htmx:afterSettle", () => this.narrow());
  }
  narrow() {
    const words = this.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll(this.dataset.rows)];
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    this.told.textContent = words.length ? `${shown} of ${rows.length}` : "";
    for (const group of new Set(rows.map((row) => row.closest("section")))) {
      if (group) group.hidden = ![...group.querySelectorAll(this.dataset.rows)].some((row) => !row.hidden);
    }
  }
}

/** What hangs over the page: it closes by Escape, which goes back to what opened it, and by a click elsewhere. */
const HANGING = "details:is(.site-menu, .range, .menu)[open]";
document.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && [...document.querySelectorAll(HANGING)].at(-1);
  if (!open) return;
  open.open = false;
  open.querySelector("summary").focus();
});
document.addEventListener("click", (event) => {
  for (const each of document.querySelectorAll(HANGING)) {
    const header = each.matches(".site-menu") ? each.closest("header") : each;
    if (!header.contains(event.target)) each.open = false;
  }
});

const SPANS = [[60, "second"], [3600, "minute", 60], [86400, "hour", 3600], [2592000, "day", 86400]];
const WORDS = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/** Times in words, for the last month; the date itself is in the title. */
function tellTimes(within) {
  for (const time of within.querySelectorAll?.("main time[datetime]") ?? []) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const span = SPANS.find(([most]) => seconds < most);
    if (span && seconds >= 0) time.textContent = WORDS.format(-Math.floor(seconds / (span[2] ?? 1)), span[1]);
  }
}

customElements.define("theme-switch", ThemeSwitch);
customElements.define("copy-button", CopyButton);
customElements.define("key-help", KeyHelp);
customElements.define("live-updates", LiveUpdates);
customElements.define("trace-events", TraceEvents);
customElements.define("session-list", SessionList);
customElements.define("list-filter", ListFilter);
tellTimes(document);
if (window.Idiomorph) {
  // A part that is brought up to date keeps what was opened in it, and what was added to it here.
  const { callbacks } = window.Idiomorph.defaults;
  callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.matches("details"));
  callbacks.beforeNodeRemoved = (node) => !node.matches?.("copy-button > button, plot-figure > *");
}
// Keys that were pressed while this was on its way.
const early = window.earlyKeys ?? [];
window.earlyKeys = null;
for (const event of early) document.querySelector("key-help")?.hear(event);
document.querySelector("header nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
for (const tab of document.querySelectorAll(".tabs [aria-current]")) {
  // Only sideways: the page itself may have been opened further down.
  const row = tab.closest(".tabs");
  const [there, seen] = [tab, row].map((each) => each.getBoundingClientRect());
  if (there.right > seen.right) row.scrollLeft += there.left - seen.left - 48;
}
document.body.addEventListener("htmx:afterSettle", () => {
  tellTimes(document);
  if (document.querySelector("[data-reload]")) location.reload();
});
for (const form of document.querySelectorAll("form.filters")) {
  form.addEventListener("change", (event) => { if (event.target.matches("select")) form.requestSubmit(); });
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
}
