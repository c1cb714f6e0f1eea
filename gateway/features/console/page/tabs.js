// The views of the page, one at a time, each a tab with an address of its own: /console/live, /console/keys and so on.

const at = (id) => document.getElementById(id);
const FIRST = "live";
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

export class Tabs {
  // shown: called with the name of the view that is shown from now on
  constructor(shown) {
    this.shown = shown;
    this.tabs = [...at("tabs").children];
    addEventListener("popstate", () => this.show(this.addressed()));
    document.addEventListener("click", (event) => this.clicked(event));
    at("tabs").addEventListener("keydown", (event) => this.pressed(event));
    this.show(this.addressed());
  }

  addressed() {
    return location.pathname.split("/").pop();
  }

  // offered: by name, whether this gateway has the view. Views that are not named are always there.
  offer(offered) {
    for (const tab of this.tabs) tab.hidden = offered[this.nameOf(tab)] === false;
    if (!this.current.hidden) return;
    history.replaceState(null, "", FIRST);
    this.show(FIRST);
  }

  open(name) {
    if (name !== this.name) history.pushState(null, "", name);
    this.show(name);
  }

  show(name) {
    for (const tab of this.tabs) {
      const chosen = this.nameOf(tab) === name;
      if (chosen) this.current = tab;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      at(this.nameOf(tab)).hidden = !chosen;
    }
    document.title = `${this.current.textContent} · Dragoman console`;
    this.shown(name);
  }

  // The name of the view that is shown.
  get name() {
    return this.nameOf(this.current);
  }

  nameOf(tab) {
    return tab.getAttribute("aria-controls");
  }

  // Any link of the page to a view. With a modifier key a browser opens the address by itself, in a tab or window.
  clicked(event) {
    const link = event.target.closest("a"), tab = this.tabs.find((one) => one.href === link?.href);
    if (!tab || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.open(this.nameOf(tab));
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const there = this.tabs.filter((tab) => !tab.hidden), index = there.indexOf(this.current);
    let next;
    if (event.key in STEPS) next = there.at((index + STEPS[event.key]) % there.length);
    else if (event.key === "Home") next = there[0];
    else if (event.key === "End") next = there.at(-1);
    else if (event.key === " ") next = event.target; // a link follows Enter alone
    else return;
    event.preventDefault();
    next.focus();
    this.open(this.nameOf(next));
  }
}
