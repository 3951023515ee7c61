"use strict";
(() => {
  const EVERY_MS = 2000;
  const LIMIT_MS = 20000; // for an answer of the server
  const IMAGES_MS = 3000; // for the images of a report, which are a part of it
  const NEAR = 120; // pixels from the top of the window, within which a reader's place is
  const token = location.pathname.split("/")[1];
  const at = (name) => new URL(`/${token}/${name}`, location.origin);
  const run = document.getElementById("run");
  const report = document.getElementById("report");
  const silent = document.getElementById("silent");
  const newer = document.querySelector(".newer");
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

  const ask = async (name) => {
    const answer = await fetch(at(name), { cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
    if (!answer.ok) throw new Error(String(answer.status));
    return answer;
  };

  // Elements by what they are, so that an element of the last report is found again in the next one.
  const LABELS = "h3, h4, summary";
  const labelOf = (element) => {
    const label = element.matches(LABELS) ? element : element.matches("details, figure, article") ? element.querySelector(LABELS) : null;
    return (label?.textContent ?? element.getAttribute("aria-label") ?? "").replace(/[\d.]+/g, "#").trim();
  };
  const keyed = (root, selector) => {
    const found = new Map();
    const seen = new Map();
    for (const element of root.querySelectorAll(selector)) {
      const name = [element.closest("section[id]")?.id, element.tagName, element.id || labelOf(element)].join("|");
      const number = seen.get(name) ?? 0;
      seen.set(name, number + 1);
      found.set(`${name}|${number}`, element);
    }
    return found;
  };

  // What a reader has done with a part of the page, and how to do it again in a newer one.
  const remembered = (root) => {
    const states = (selector, state) => [...keyed(root, selector)].map(([key, element]) => [key, state(element)]);
    const again = (selector, states, act) => {
      const now = keyed(root, selector);
      for (const [key, state] of states) if (now.has(key) && state !== null) act(now.get(key), state);
    };
    const opened = states("details", (details) => details.open);
    const filled = states(".tools input, .tools select", (field) => field.value || null);
    const sorted = states("table", (table) => {
      const index = [...table.querySelectorAll("thead th")].findIndex((cell) => cell.hasAttribute("aria-sort"));
      return index < 0 ? null : [index, table.querySelectorAll("thead th")[index].getAttribute("aria-sort")];
    });
    const pages = states("div.trials", (container) => Number(container.dataset.page ?? 0) || null);
    const scrolled = states(".wide, .picture", (wide) => wide.scrollLeft || null);
    const FOCUS = "summary, button, a, .wide, .picture";
    const focused = states(FOCUS, (element) => (element === document.activeElement ? true : null));
    const PLACES = "section[id], article, figure, details, h2, h3, h4";
    const places = root.getBoundingClientRect().top < 0 ? states(PLACES, (place) => place.getBoundingClientRect()) : [];
    const place = places.filter(([, box]) => box.height > 0 && box.top <= NEAR).at(-1);
    return () => {
      again("details", opened, (details, open) => { details.open = open; });
      again(".tools input, .tools select", filled, (field, value) => {
        field.value = value;
        if (field.value !== value) field.value = ""; // a choice that is there no more
        field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
      });
      again("table", sorted, (table, [index, direction]) => {
        const button = table.querySelectorAll("thead th")[index]?.querySelector("button");
        for (let clicks = direction === "ascending" ? 1 : 2; button && clicks > 0; clicks -= 1) button.click();
      });
      again("div.trials", pages, (container, page) => {
        const next = [...container.querySelectorAll("button")].at(-1);
        for (let number = 0; next && number < page; number += 1) next.click();
      });
      again(".wide, .picture", scrolled, (wide, left) => { wide.scrollLeft = left; });
      again(FOCUS, focused, (element) => element.focus({ preventScroll: true }));
      const now = place && keyed(root, PLACES).get(place[0]);
      if (now) scrollBy({ top: now.getBoundingClientRect().top - place[1].top, behavior: "instant" });
    };
  };

  // Replace a part of the page. Its images are decoded before, so that nothing below them moves.
  const replace = async (root, html, setUp) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    const fresh = document.importNode(template.content, true);
    const images = [...fresh.querySelectorAll("img")].map((image) => image.decode().catch(() => {}));
    if (images.length) await Promise.race([Promise.all(images), sleep(IMAGES_MS)]);
    const again = remembered(root);
    root.replaceChildren(fresh);
    if (setUp) await setUp();
    again();
  };

  // A reader who reads a trial, types into a filter or selects text keeps what he has until he is done.
  const isBusy = (root) => {
    const selection = getSelection();
    const selects = !selection.isCollapsed && root.contains(selection.anchorNode);
    return selects || root.contains(document.activeElement?.closest("input, select, dialog[open]")) || Boolean(root.querySelector("dialog[open]"));
  };

  let shownRun = "";
  let shownReport = 0;
  let insists = false; // on the newer report
  const show = async (state) => {
    document.title = state.title;
    document.documentElement.dataset.state = state.state;
    if (state.run !== shownRun && !isBusy(run)) {
      await replace(run, state.run);
      shownRun = state.run;
    }
    const waits = state.report > shownReport && isBusy(report) && !insists;
    newer.hidden = !waits;
    if (state.report > shownReport && !waits) {
      const contents = await (await ask("report")).text();
      insists = false;
      await replace(report, contents, window.setUpReport);
      shownReport = state.report;
      document.documentElement.dataset.report = shownReport;
      for (const link of document.querySelectorAll("nav a")) link.hidden = !document.getElementById(link.hash.slice(1));
    }
  };

  let lookNow = () => {};
  const follow = async () => {
    let last = "";
    for (;;) {
      if (!document.hidden) {
        try {
          await show(await (await ask("state")).json());
          last = new Date().toLocaleTimeString();
          silent.hidden = true;
        } catch (error) {
          silent.textContent = `The server of this page does not answer (${error.message}): hpxfer watch has ended, or the connection is down. ${last ? `What is below is from ${last}.` : ""}`;
          silent.hidden = false;
        }
      }
      await Promise.race([sleep(EVERY_MS), new Promise((done) => { lookNow = done; })]);
    }
  };
  document.addEventListener("visibilitychange", () => lookNow());
  document.getElementById("newer").addEventListener("click", () => {
    insists = true;
    getSelection().removeAllRanges();
    lookNow();
  });
  follow();
})();
