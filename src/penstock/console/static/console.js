// The console works without this script, except live tail and search. All HTML that is inserted was escaped by the server.
"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const stored = () => { try { return localStorage.getItem("penstock-theme") || "auto"; } catch { return "auto"; } };
  const show = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", theme);
    for (const each of document.querySelectorAll(".theme")) each.textContent = `Theme: ${theme}`;
  };
  show(stored());
  const nextTheme = () => {
    const theme = themes[(themes.indexOf(stored()) + 1) % themes.length];
    try { localStorage.setItem("penstock-theme", theme); } catch { /* private browsing */ }
    show(theme);
  };
  const $ = (selector) => document.querySelector(selector);
  const typing = (target) => target.closest("input, select, textarea, [contenteditable]") !== null;

  // --- first screen
  const live = () => {
    const part = $("#live");
    if (!part || !window.EventSource) return;
    let screen = null;
    const listen = () => {
      if (screen || document.hidden) return;
      screen = new EventSource(part.dataset.events);
      screen.addEventListener("screen", (event) => {
        if (part.contains(document.activeElement) || String(getSelection())) return;
        part.innerHTML = JSON.parse(event.data).html;
      });
      screen.onerror = () => {
        if (screen && screen.readyState === EventSource.CLOSED) { screen = null; setTimeout(listen, 3000); }
      };
    };
    // A tab that nobody sees does not keep the console reading the cluster.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { screen?.close(); screen = null; } else listen();
    });
    listen();
  };

  // --- records: tail and search
  const MOST_ROWS = 500;
  let source = null;
  const insert = (html, atTop) => {
    const body = $("#records");
    const holder = document.createElement("tbody");
    holder.innerHTML = html;
    for (const row of holder.children) row.classList.add("fresh");
    if (atTop) body.prepend(...holder.children); else body.append(...holder.children);
    while (body.children.length > MOST_ROWS) body.lastElementChild.remove();
    if (body.children.length) $("#nothing")?.remove();
  };
  const progress = (text, share) => {
    const place = $("#progress");
    place.textContent = "";
    if (share !== undefined) {
      const bar = document.createElement("progress");
      bar.max = 1; bar.value = share; bar.setAttribute("aria-label", "Progress of the search");
      place.append(bar);
    }
    const words = document.createElement("span");
    words.textContent = text;
    place.append(words);
  };
  const stop = () => { source?.close(); source = null; };
  const clear = () => {
    $("#records").textContent = "";
    $("#nothing")?.remove();
    const pager = $(".pager");
    if (pager) pager.hidden = true;
  };
  const queryOf = (...forms) => {
    const query = new URLSearchParams();
    for (const form of forms) for (const [name, value] of new FormData(form)) if (value) query.set(name, value);
    return query;
  };
  const tailing = () => {
    const button = $("#tail");
    if (!button) return;
    let at = "", seen = 0, skipped = 0;
    const press = (on) => {
      button.setAttribute("aria-pressed", String(on));
      button.textContent = on ? "Pause" : at ? "Resume" : "Live tail";
    };
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-pressed") === "true") {
        stop(); press(false);
        progress(`Paused after ${seen.toLocaleString("en")} new records. Resume continues where it stopped.`);
        return;
      }
      stop();
      const query = queryOf($("#browse"));
      for (const name of ["offset", "from", "limit"]) query.delete(name);
      if (at) query.set("at", at); else clear();
      source = new EventSource(`${button.dataset.events}?${query}`);
      press(true);
      progress("Waiting for new records …");
      source.addEventListener("records", (event) => {
        const found = JSON.parse(event.data);
        at = found.at; seen += found.count; skipped += found.skipped;
        if (found.count) insert(found.html, true);
        const more = skipped ? `, ${skipped.toLocaleString("en")} more arrived too fast to show` : "";
        progress(found.problem ? `Trying again: ${found.problem}` : `Live: ${seen.toLocaleString("en")} new records${more}`);
        // A reconnect of the browser would start at the end again: keep the place in the address.
      });
      source.addEventListener("failed", (event) => { progress(JSON.parse(event.data).problem); stop(); press(false); });
      source.onerror = () => {
        if (!source) return;
        stop(); progress("The connection was lost; trying again …");
        setTimeout(() => { if (button.getAttribute("aria-pressed") === "true") { press(false); button.click(); } }, 1500);
      };
    });
  };
  const searching = () => {
    const form = $("#search"), button = $("#stop");
    if (!form) return;
    let at = "";
    const done = (text, more) => {
      stop(); button.disabled = true;
      progress(text);
      if (!more) return;
      const go = document.createElement("button");
      go.type = "button"; go.textContent = "Search on";
      go.addEventListener("click", () => run(at));
      $("#progress").append(go);
    };
    const wanted = () => {
      const query = queryOf($("#browse"), form);
      for (const name of ["offset", "limit"]) query.delete(name);
      if (!new FormData(form).get("from")) query.delete("from");
      return query;
    };
    const run = (from) => {
      stop();
      const tail = $("#tail");
      if (tail.getAttribute("aria-pressed") === "true") { tail.setAttribute("aria-pressed", "false"); tail.textContent = "Resume"; }
      const query = wanted();
      if (from) query.set("at", from); else clear();
      at = "";
      button.disabled = false;
      progress("Looking up where to begin …", 0);
      let last = "";
      source = new EventSource(`${form.dataset.events}?${query}`);
      source.addEventListener("step", (event) => {
        const step = JSON.parse(event.data);
        at = step.at; last = step.text;
        if (step.html) insert(step.html, false);
        if (step.end) done(step.text, step.end === "paused"); else progress(step.text, step.share);
      });
      source.onerror = async () => {
        if (!source) return;
        const address = source.url;
        stop();
        let why = "";
        if (!last) { try { why = (await (await fetch(address)).json()).problem; } catch { why = "The console does not answer."; } }
        done(why || `The connection was lost. ${last}`, Boolean(at));
      };
      button.onclick = () => done(`Stopped: ${last || "before the first answer"}`, Boolean(at));
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const button = event.submitter;
      if (button?.name !== "as") { run(""); return; }
      // A download has what the search finds: the partition and the transactions are fields of the other form.
      const query = wanted();
      query.set("as", button.value);
      location.assign(`${button.formAction}?${query}`);
    });
  };

  // --- keyboard
  let prefix = false;
  const rows = () => [...document.querySelectorAll("main tbody tr")];
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const old = all.findIndex((row) => row.classList.contains("now"));
    all[old]?.classList.remove("now");
    const row = all[Math.max(0, Math.min(all.length - 1, old < 0 ? 0 : old + by))];
    row.classList.add("now");
    row.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
    const key = event.key;
    if (prefix) {
      prefix = false;
      const link = $(`.side nav a[data-keys="g ${CSS.escape(key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (key === "g") { prefix = true; setTimeout(() => { prefix = false; }, 1500); }
    else if (key === "/") { const field = $("[data-search]"); if (field) { event.preventDefault(); field.focus(); field.select(); } }
    else if (key === "?") $("#keys")?.showModal();
    else if (key === "t") nextTheme();
    else if (key === "j") step(1);
    else if (key === "k") step(-1);
    else if (key === "n") $('.pager a[rel="next"]')?.click();
    else if (key === "p") $('.pager a[rel="prev"]')?.click();
    else if (key === "Enter" && event.target === document.body) {
      const row = $("tr.now");
      (row?.querySelector("summary") || row?.querySelector("a"))?.click();
    }
  });

  // --- buttons
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches(".theme")) nextTheme();
    else if (button.matches(".keys")) $("#keys").showModal();
    else if (button.matches(".menu")) {
      const open = $(".side").classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
    } else if (button.dataset.copy !== undefined) {
      const label = button.textContent;
      try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
      catch { button.textContent = "Select and copy"; }
      setTimeout(() => { button.textContent = label; }, 1200);
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.dataset.submit !== undefined) event.target.form.requestSubmit();
  });
  document.addEventListener("DOMContentLoaded", () => { show(stored()); live(); tailing(); searching(); });
})();
