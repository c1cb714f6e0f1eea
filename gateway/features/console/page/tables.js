// Tables of the page.

const ROWS = 200;
export const PAGE = 100; // rows of a table that is fetched by pages

// The line below a table that is fetched by pages: which rows it shows, and the buttons to the pages beside it. from:
// how many rows come before; total: how many there are, if that is known; back: whether a page comes before.
export function pages(id, from, count, more, total = null, back = from > 0) {
  const line = document.getElementById(id), [before, next] = line.querySelectorAll("button");
  line.hidden = !back && !more;
  before.hidden = !back;
  next.hidden = !more;
  line.querySelector("span").textContent = !count ? "" : `${from + 1} to ${from + count}${total === null ? "" : ` of ${total}`}`;
}

// Pages of a table, each of which begins after the last row of the one before, and is short where the reader may not see
// all. load: (starts) => fetches the page that begins after the last of them, and shows it.
export class Pages {
  constructor(id, top, load) {
    this.id = id;
    this.first();
    const [before, next] = document.getElementById(id).querySelectorAll("button");
    const turn = async (starts) => { await load(starts); turned(id, top); };
    before.onclick = () => turn(this.starts.slice(0, -1));
    next.onclick = () => turn([...this.starts, this.next]);
  }

  first() {
    this.starts = [""];
    this.counts = [];
  }

  // count: the rows of the page that begins after the last of starts; next: after which row the one behind it begins.
  show(starts, count, next) {
    this.starts = starts;
    this.next = next;
    this.counts = [...this.counts.slice(0, starts.length - 1), count];
    const from = this.counts.slice(0, -1).reduce((sum, one) => sum + one, 0);
    pages(this.id, from, count, Boolean(next), null, starts.length > 1);
  }
}

// After another page was asked for: its first row, and the focus where it was, or beside that.
export function turned(id, top) {
  document.getElementById(top).scrollIntoView({ block: "nearest" });
  if (document.activeElement === document.body) document.querySelector(`#${id} button:not([hidden])`)?.focus({ preventScroll: true });
}

// The focus goes back to the row that a card was opened from.
export function returned(id, row) {
  document.querySelector(`#${id} [data-row="${CSS.escape(row)}"]`)?.focus();
}

// lines of cells, each a value, [value, style, title], {share: 0..1} for a bar, or an element; a cell also has the style
// of its column's head. Without lines the table is hidden. others: how many lines are left out already. most: lines that
// are shown.
export function rows(id, lines, others = 0, most = ROWS) {
  const table = document.getElementById(id), heads = [...table.tHead.rows[0].cells];
  const shown = lines.slice(0, most).map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, column) => {
      const made = row.insertCell();
      if (cell instanceof Element) {
        made.append(cell);
        made.className = heads[column].className;
        return;
      }
      if (cell?.share !== undefined) {
        const bar = document.createElement("i");
        bar.style.width = `${(cell.share * 100).toFixed(1)}%`;
        made.append(bar);
        made.className = heads[column].className;
        return;
      }
      const [value, style = "", title = value] = Array.isArray(cell) ? cell : [cell];
      made.textContent = value;
      made.title = title;
      made.className = `${heads[column].className} ${style}`.trim();
    });
    return row;
  });
  const left = Math.max(lines.length - most, 0) + others;
  if (left) {
    const row = document.createElement("tr");
    row.insertCell().textContent = `and ${left} more`;
    shown.push(row);
  }
  const held = table.contains(document.activeElement) ? document.activeElement.dataset.row : undefined;
  table.tBodies[0].replaceChildren(...shown);
  table.parentElement.hidden = !lines.length;
  if (held !== undefined) table.querySelector(`[data-row="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}
