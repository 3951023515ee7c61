"use strict";
(() => {
  const PAGE_ROWS = 25;
  const FILTER_FROM_ROWS = 8;
  const PAPER_COLUMNS = 16;
  const RELOAD_MS = 30_000;
  const NOTHING = "-";
  const make = (name, text, properties) => {
    const element = document.createElement(name);
    if (text !== undefined && text !== null) element.textContent = text;
    return Object.assign(element, properties);
  };
  const number = (value) => {
    if (value === null || value === undefined || value === "") return null;
    return Number.isFinite(Number(value)) ? Number(value) : null;
  };
  // Missing values go last in either direction.
  const compared = (a, b, direction) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  };
  const headings = (row, onSort) => {
    const cells = [...row.cells];
    cells.forEach((cell, index) => {
      const button = make("button", cell.textContent, { type: "button" });
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        cells.forEach((other) => other.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        onSort(index, down ? -1 : 1);
      });
    });
  };
  const labeled = (name, control) => {
    const label = make("label", name);
    label.append(control);
    return label;
  };

  const setTheme = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };

  const sortable = (table) => {
    const body = table.tBodies[0];
    const value = (row, index) => {
      const cell = row.cells[index];
      return "value" in cell.dataset ? number(cell.dataset.value) : cell.textContent === NOTHING ? null : cell.textContent;
    };
    headings(table.tHead.rows[0], (index, direction) => {
      const rows = [...body.rows].sort((a, b) => compared(value(a, index), value(b, index), direction));
      body.append(...rows);
    });
    if (body.rows.length < FILTER_FROM_ROWS) return;
    const input = make("input", null, { type: "search" });
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    const tools = make("div", null, { className: "tools" });
    tools.append(labeled("Filter", input));
    table.closest(".wide").before(tools);
  };

  const unpacked = async (text) => {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };

  // A column is an array of values, or its distinct values and the index of each row's value (-1: none).
  const cellOf = (column, row) => {
    if (!column) return null;
    if (Array.isArray(column)) return column[row];
    return column.at[row] < 0 || column.values.length === 0 ? null : column.values[column.at[row]];
  };
  const written = (value, digits = 6) => {
    if (value === null || value === undefined) return NOTHING;
    if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };

  const facts = (pairs) => {
    const list = make("dl");
    for (const [name, value] of pairs) {
      const line = make("div");
      line.append(make("dt", name.replaceAll("_", " ")), make("dd", written(value)));
      list.append(line);
    }
    return list;
  };
  const rolesTable = (roles) => {
    const fields = ["init_std", "lr", "eps", "weight_decay", "forward"];
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const name of ["role", ...fields]) head.append(make("th", name, { scope: "col", className: name === "role" ? "" : "number" }));
    const body = table.createTBody();
    for (const [role, values] of Object.entries(roles)) {
      const row = body.insertRow();
      row.append(make("td", role));
      for (const name of fields) row.append(make("td", written(values[name], 4), { className: "number" }));
    }
    const wide = make("div", null, { className: "wide" });
    wide.append(table);
    return wide;
  };
  const showTrial = (data, row) => {
    const { columns, shared } = data;
    const body = document.querySelector("#trial .body");
    const id = columns.trial_id[row];
    const error = cellOf(columns.error, row);
    const resolved = cellOf(shared.resolved, row);
    const plain = Object.keys(columns).filter((name) => !["trial_id", "error"].includes(name));
    body.replaceChildren(make("h3", `Trial ${id}`), facts(plain.map((name) => [name, cellOf(columns[name], row)])));
    if (error) body.append(make("h4", "Error"), make("pre", error));
    if (shared.resolved) body.append(make("h4", "Resolved multipliers at this shape")); // a table of runs has none
    if (resolved) {
      body.append(rolesTable(resolved.roles ?? {}), facts(Object.entries({ ...resolved.globals, ...resolved.structure })));
    } else if (shared.resolved) {
      const none = cellOf(columns.status, row) === "missing" ? "The trial was not run." : "They are not on this page; trials.parquet holds them.";
      body.append(make("p", none));
    }
    for (const name of ["multipliers", "conventions", "setting", "base_shape", "versions"]) {
      const value = cellOf(shared[name], row);
      if (value && Object.keys(value).length) body.append(make("h4", name.replaceAll("_", " ")), facts(Object.entries(value)));
    }
    const dialog = document.getElementById("trial");
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };

  const trialTable = (container, data) => {
    const { columns } = data;
    const kept = data.losses[0][1]; // the column that a narrow screen keeps in view
    const shown = [
      ["trial", "trial_id"], ["parameterization", "label"], ["shape", "shape"], ["axes", "axes"],
      ...data.grid.map((name) => [name, name]), ["seed", "seed"], ["status", "status"],
      ...data.losses, ["diverged at step", "diverged_step"],
    ];
    const count = columns.trial_id.length;
    const texts = Array.from({ length: count }, (_, row) => shown.map(([, name]) => written(cellOf(columns[name], row))).join(" ").toLowerCase());
    let order = Array.from({ length: count }, (_, row) => row);
    let page = 0;
    const tools = make("div", null, { className: "tools" });
    const search = make("input", null, { type: "search" });
    tools.append(labeled("Filter", search));
    const choices = ["label", "axes", "shape", "status"].map((name) => {
      const select = make("select");
      select.append(make("option", "all", { value: "" }));
      for (const value of [...columns[name].values].sort()) select.append(make("option", value, { value }));
      tools.append(labeled(shown.find(([, key]) => key === name)[0], select));
      select.addEventListener("change", () => { page = 0; draw(); });
      return [name, select];
    });
    const table = make("table");
    const head = table.createTHead().insertRow();
    const values = (name) => (Array.isArray(columns[name]) ? columns[name] : columns[name]?.values ?? []);
    const numeric = (name) => values(name).every((value) => value === null || typeof value === "number");
    const kinds = (name) => [numeric(name) && "number", name === kept && "kept"].filter(Boolean).join(" ");
    for (const [title, name] of shown) head.append(make("th", title, { scope: "col", className: kinds(name) }));
    const body = table.createTBody();
    const wide = make("div", null, { className: "wide", tabIndex: 0 });
    wide.append(table);
    const status = make("p", "", { className: "status" });
    const back = make("button", "Previous", { type: "button" });
    const next = make("button", "Next", { type: "button" });
    const pages = make("div", null, { className: "tools" });
    pages.append(back, next);
    const draw = () => {
      const wanted = search.value.toLowerCase();
      const picked = choices.filter(([, select]) => select.value !== "");
      const rows = order.filter((row) => texts[row].includes(wanted) && picked.every(([name, select]) => cellOf(columns[name], row) === select.value));
      page = Math.min(page, Math.max(0, Math.ceil(rows.length / PAGE_ROWS) - 1));
      container.dataset.page = page;
      const start = page * PAGE_ROWS;
      body.replaceChildren(...rows.slice(start, start + PAGE_ROWS).map((row) => {
        const line = make("tr");
        shown.forEach(([, name], index) => {
          const value = cellOf(columns[name], row);
          const cell = make("td", index ? written(value) : null, { className: kinds(name) });
          if (!index) cell.append(make("a", /^[0-9a-f]{12,}$/.test(value) ? value.slice(0, 8) : value, { href: `#trial=${value}`, title: value }));
          line.append(cell);
        });
        line.addEventListener("click", () => { location.hash = `trial=${columns.trial_id[row]}`; });
        return line;
      }));
      const end = Math.min(start + PAGE_ROWS, rows.length);
      status.textContent = rows.length ? `${start + 1} to ${end} of ${rows.length} trials; click one for all that is known of it` : "no trial matches";
      back.disabled = page === 0;
      next.disabled = end >= rows.length;
    };
    search.addEventListener("input", () => { page = 0; draw(); });
    back.addEventListener("click", () => { page -= 1; draw(); });
    next.addEventListener("click", () => { page += 1; draw(); });
    headings(head, (index, direction) => {
      const column = columns[shown[index][1]];
      order = order.slice().sort((a, b) => compared(cellOf(column, a), cellOf(column, b), direction));
      page = 0;
      draw();
    });
    container.replaceChildren(tools, status, wide, pages);
    draw();
  };

  const rowOf = new Map(); // trial id -> its data and its row in them
  const follow = () => {
    const found = rowOf.get(decodeURIComponent(location.hash).replace("#trial=", ""));
    if (found) showTrial(...found);
  };
  const setUp = async () => {
    document.querySelectorAll("main table.sorts").forEach(sortable);
    const dialog = document.getElementById("trial");
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => history.replaceState(null, "", "#trials"));
    for (const container of document.querySelectorAll("div.trials")) {
      const status = container.querySelector(".status");
      if (typeof DecompressionStream === "undefined") {
        status.textContent = "This browser is too old to unpack the table of trials; trials.parquet holds it.";
        continue;
      }
      const data = await unpacked(document.getElementById(container.dataset.packed).textContent);
      data.columns.trial_id.forEach((id, row) => rowOf.set(id, [data, row]));
      trialTable(container, data);
    }
  };

  const start = async () => {
    document.getElementById("theme").addEventListener("click", setTheme);
    await setUp();
    addEventListener("hashchange", follow);
    follow();
    // A link to a figure in a closed section opens the section.
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#figure-']");
      const closed = link && document.getElementById(link.hash.slice(1))?.closest("details:not([open])");
      if (closed) closed.open = true;
    });
    // A reader of paper cannot open anything: open what fits on it.
    const fits = (details) => [...details.querySelectorAll("thead tr")].every((row) => row.cells.length <= PAPER_COLUMNS);
    addEventListener("beforeprint", () => {
      for (const details of document.querySelectorAll(".card details, details.more")) details.open ||= fits(details);
    });
    // The page of a run that is under way is written again and again. Whoever reads a trial or filters is left alone.
    const isUsed = () => document.querySelector("dialog[open]") || [...document.querySelectorAll(".tools input, .tools select")].some((control) => control.value);
    if ("running" in document.body.dataset) setInterval(() => isUsed() || location.reload(), RELOAD_MS);
    document.documentElement.dataset.ready = "true";
  };
  start();
})();
