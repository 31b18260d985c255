"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down", "star", "pentagon", "hexagon"];
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const format = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  let drawn = 0;

  // Colours that are dark enough on white are half way to white on black.
  const shown = (value) => {
    if (!dark.matches) return value;
    if (Array.isArray(value)) return value.map(shown);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, shown(v)]));
    if (typeof value !== "string" || !/^#[0-9a-f]{3,6}$/i.test(value)) return value;
    const full = value.length === 4 ? value.replace(/[0-9a-f]/gi, "$&$&") : value;
    const half = (at) => Math.round((parseInt(full.slice(at, at + 2), 16) + 255) / 2).toString(16).padStart(2, "0");
    return `#${half(1)}${half(3)}${half(5)}`;
  };
  const layout = (own) => {
    const axis = { gridcolor: colour("grid"), zerolinecolor: colour("zero"), automargin: true };
    return {
      font: { family: FAMILY, size: 13, color: colour("ink") },
      paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"), hovermode: "closest",
      margin: { l: 60, r: 12, t: 12, b: 50 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      ...own,
      xaxis: { ...axis, ...(own.xaxis || {}) }, yaxis: { ...axis, ...(own.yaxis || {}) },
    };
  };

  const element = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  // Plotly is kept compressed, and allowed by the hash of what it unpacks to.
  const unpack = async () => {
    const packed = document.getElementById("library");
    if (!packed) return;
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(element("script", {}, await new Response(stream).text()));
    packed.remove();
  };

  const drawPlot = (box, plot) => {
    if (plot.layout && plot.layout.height) box.style.height = `${plot.layout.height}px`;
    return Plotly.react(box, shown(plot.data), layout(plot.layout || {}), CONFIG);
  };

  const find = (data, root) => {
    const number = root.dataset.finder, most = 25;
    const place = new Map(data.rows.map((row, i) => [row[0], i]));
    const input = element("input", { id: `find-${number}`, type: "search", autocomplete: "off", placeholder: data.rows.length ? data.rows[0][0] : "" });
    const controls = element("div", { class: "controls" }, element("div", {}, element("label", { for: `find-${number}` }, `Search by ${data.header[0]}`), input));
    const orders = Object.keys(data.orders);
    const select = element("select", { id: `order-${number}` });
    for (const name of ["as in the table", ...orders]) select.append(element("option", { value: name }, name));
    if (orders.length) controls.append(element("div", {}, element("label", { for: `order-${number}` }, "Order"), select));
    const body = element("tbody", {});
    const kind = (j) => (data.texts[j] ? { class: "text" } : {});
    const head = element("thead", {}, element("tr", {}, ...data.header.map((cell, j) => element("th", { scope: "col", ...kind(j) }, cell))));
    const count = element("p", { class: "caption", "aria-live": "polite" });
    const detail = element("div", { "aria-live": "polite" });
    const plot = data.curves ? element("div", { class: "plot", role: "img", "aria-label": "The chosen series and its forecast" }) : null;
    root.append(controls, count, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What was found" }, element("table", {}, head, body)), detail);
    if (plot) detail.append(element("h3", {}), plot);
    let chosen = plot ? 0 : null;

    const choose = (i) => {
      chosen = i;
      for (const row of body.children) row.setAttribute("aria-selected", String(Number(row.dataset.at) === i));
      if (plot) {
        detail.firstChild.textContent = data.rows[i][0];
        return drawPlot(plot, data.curves[i]);
      }
      detail.replaceChildren();
      if (!data.near) return null;
      detail.append(element("h3", {}, `${data.near_caption} ${data.rows[i][0]}`));
      const list = element("ul", {});
      for (const [name, weight] of data.near[i]) {
        const there = place.get(name);
        const words = there === undefined ? "" : `: ${data.rows[there].slice(1, 3).filter(Boolean).join(", ")}`;
        const link = element("button", { type: "button", class: "link" }, name);
        link.addEventListener("click", () => { input.value = name; list_(); if (there !== undefined) choose(there); });
        list.append(element("li", {}, link, `${words} (weight ${format(weight)})`));
      }
      detail.append(data.near[i].length ? list : element("p", {}, "None."));
      return null;
    };
    const list_ = () => {
      const wanted = input.value.trim().toLowerCase();
      const order = data.orders[select.value] || data.rows.map((_, i) => i);
      const found = order.filter((i) => data.rows[i][0].toLowerCase().includes(wanted));
      const exact = place.get(input.value.trim());
      if (exact !== undefined) found.unshift(...found.splice(found.indexOf(exact), 1));
      count.textContent = `${found.length.toLocaleString("en")} found${found.length > most ? `, the first ${most} are shown` : ""}.`;
      body.replaceChildren(...found.slice(0, most).map((i) => {
        const [name, ...cells] = data.rows[i];
        const row = element("tr", { "data-at": i, tabindex: "0" }, element("th", { scope: "row" }, name), ...cells.map((cell, j) => element("td", kind(j + 1), cell)));
        row.addEventListener("click", () => choose(i));
        row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(i); });
        return row;
      }));
      if (found.length && wanted) choose(found[0]);
      hint();
    };
    input.addEventListener("input", list_);
    select.addEventListener("change", list_);
    list_();
    if (plot && data.rows.length) Promise.resolve(choose(0)).then(() => { drawn += 1; });
    return () => { if (plot && chosen !== null) choose(chosen); };
  };

  // A table that is wider than the screen says so.
  const hint = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      let line = box.previousElementSibling;
      if (!line || !line.classList.contains("hint")) {
        line = element("p", { class: "hint", "aria-hidden": "true" }, "Scroll the table sideways for more columns \u2192");
        box.before(line);
      }
      line.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    }
  };

  const webgl = () => {
    try {
      return Boolean(document.createElement("canvas").getContext("webgl"));
    } catch (error) {
      return false;
    }
  };

  const explore = (data, root) => {
    const count = data.rows.length;
    // Vector points print best; many need the graphics card, where there is one.
    const kind = count > 3000 && webgl() ? "scattergl" : "scatter";
    const place = new Map(data.rows.map((row, i) => [row, i]));
    const PARTS = ["in no part", "training", "validation", "test"];
    const className = (y) => (y < 0 ? "unknown" : data.classes[y] ?? `class ${y}`);
    let projection = data.projections[0];
    let selected = null;

    const classOf = (row) => {
      if (!data.classes) return null;
      if (place.has(row)) return className(data.y[place.get(row)]);
      return data.all_y ? className(data.all_y[row]) : null;
    };
    const describe = (i) => {
      const parts = [`Row ${data.rows[i]}`];
      if (data.classes) parts.push(`class ${className(data.y[i])}`, `predicted ${className(data.guess[i])}`);
      else parts.push(data.value[i] === null ? "value unknown" : `value ${data.value[i]}`, `predicted ${data.guess[i]}`);
      parts.push(PARTS[data.part[i]]);
      return parts.join(", ");
    };

    // Controls
    const controls = element("div", { class: "controls" });
    if (data.projections.length > 1) {
      const names = { tsne: "t-SNE (who is near whom)", pca: "principal components (distances to scale)" };
      const select = element("select", { id: "projection" });
      for (const name of data.projections) select.append(element("option", { value: name }, names[name]));
      select.addEventListener("change", () => { projection = select.value; panels.forEach((p) => p.draw()); });
      controls.append(element("div", {}, element("label", { for: "projection" }, "Seen by"), select));
    } else {
      const hows = {
        pca: "Seen by its two principal components.", tsne: "Seen by t-SNE.",
        line: "The states lie on one line: across is a row's place on it, and rows that are close are piled up.",
      };
      controls.append(element("p", {}, hows[data.projections[0]]));
    }
    const input = element("input", { id: "row", type: "number", min: 0, max: data.total - 1, step: 1, placeholder: String(data.rows[0]) });
    const clear = element("button", { type: "button" }, "Clear");
    controls.append(element("div", {}, element("label", { for: "row" }, "Row number"), input, " ", clear));
    const detail = element("div", { class: "detail", "aria-live": "polite", id: "detail" }, element("p", {}, "No row is chosen."));
    const grid = element("div", { class: "panels" });
    root.append(controls, grid, detail);

    const image = (i, small) => {
      if (!data.images || !data.images[i]) return null;
      const node = element("img", { src: data.images[i], alt: describe(i) });
      if (small) node.className = "thumb";
      return node;
    };

    const show = (i) => {
      detail.replaceChildren();
      const head = element("div", {});
      const picture = image(i, false);
      if (picture) head.append(picture);
      head.append(element("p", {}, describe(i) + "."));
      detail.append(head);
      for (const panel of data.panels) {
        if (!panel.influences) continue;
        const box = element("div", {});
        box.append(element("h3", {}, `Influenced most, ${panel.title.toLowerCase()}`));
        const found = panel.influences[i];
        if (!found) {
          const known = Object.keys(panel.influences).map(Number);
          const near = known.reduce((best, k) => (Math.abs(k - i) < Math.abs(best - i) ? k : best), known[0]);
          const button = element("button", { type: "button" }, `Show row ${data.rows[near]}`);
          button.addEventListener("click", () => choose(near));
          box.append(element("p", {}, `Computed for ${format(known.length)} of the rows, not for this one. `, button));
        } else {
          const body = element("tbody", {});
          found[0].forEach((row, at) => {
            const cell = element("th", { scope: "row" });
            const thumb = image(place.get(row), true);
            if (thumb) cell.append(thumb);
            cell.append(String(row));
            body.append(element("tr", {}, cell, element("td", {}, classOf(row) ?? "–"), element("td", {}, `× ${format(found[1][at])}`)));
          });
          const head = element("thead", {}, element("tr", {}, ...["row", "class", "of uniform"].map((t) => element("th", { scope: "col" }, t))));
          box.append(element("table", { "aria-label": `Rows that influenced row ${data.rows[i]} most, ${panel.title.toLowerCase()}` }, head, body));
        }
        detail.append(box);
      }
    };

    const choose = (i) => {
      selected = i;
      if (i === null) detail.replaceChildren(element("p", {}, "No row is chosen."));
      else { input.value = data.rows[i]; show(i); }
      panels.forEach((panel) => panel.highlight());
    };

    const groups = () => {
      if (!data.classes) {
        // A row whose value is not known has the colour of the predicted one, and is open.
        const value = data.value.map((v, i) => v ?? data.guess[i]);
        const known = value.filter((v) => v !== null), ends = { cmin: Math.min(...known), cmax: Math.max(...known) };
        const group = (name, members, own) => ({ name, members, marker: { color: members.map((i) => value[i]), colorscale: "Viridis", ...ends, ...own } });
        const rows = data.value.map((_, i) => i), told = rows.filter((i) => data.value[i] !== null), rest = rows.filter((i) => data.value[i] === null);
        const bar = { showscale: true, colorbar: { thickness: 10 } };
        return [
          ...(told.length ? [group("known value", told, bar)] : []),
          ...(rest.length ? [group("predicted", rest, { symbol: "circle-open", line: { width: 1.5 }, ...(told.length ? {} : bar) })] : []),
        ];
      }
      // A row whose class is not known has the colour of the predicted one, and is open.
      const byClass = new Map();
      data.y.forEach((y, i) => { const key = y < 0 ? -1 - data.guess[i] : y; if (!byClass.has(key)) byClass.set(key, []); byClass.get(key).push(i); });
      return [...byClass.keys()].sort((a, b) => (a < 0 ? -1 - a : a) - (b < 0 ? -1 - b : b) || b - a).map((key) => {
        const y = key < 0 ? -1 - key : key;
        return {
          name: escape(className(y)) + (key < 0 ? " (predicted)" : ""), members: byClass.get(key),
          marker: { color: data.colours[y % data.colours.length], symbol: SYMBOLS[y % SYMBOLS.length] + (key < 0 ? "-open" : ""), line: { width: key < 0 ? 1.5 : 0 } },
        };
      });
    };

    const makePanel = (panel, number) => {
      const plot = element("div", { class: "plot", role: "img", "aria-label": `${panel.title}: ${count} rows in two dimensions, coloured by ${data.classes ? "class" : "value"}. Choose a row by its number to have its influences as a table.` });
      const box = element("div", { class: "panel" }, element("h3", {}, panel.title), plot);
      grid.append(box);
      const edges = panel.edges && panel.edges.strength.length ? panel.edges : null;
      let threshold = Infinity;
      const size = count > 5000 ? 3 : count > 1000 ? 5 : 7;

      const coordinates = () => panel.points[projection];
      const lines = () => {
        const [px, py] = coordinates(), x = [], y = [];
        let shown = 0;
        if (edges) {
          edges.strength.forEach((strength, e) => {
            if (strength < threshold) return;
            shown += 1;
            const a = edges.target[e], b = edges.source[e];
            x.push(px[a], px[b], null); y.push(py[a], py[b], null);
          });
        }
        return { x, y, shown };
      };
      const chosen = () => {
        const [px, py] = coordinates(), x = [], y = [];
        if (selected === null) return { x, y };
        const found = (panel.influences || {})[selected];
        for (const row of found ? found[0] : []) {
          const at = place.get(row);
          if (at === undefined) continue;
          x.push(px[selected], px[at], null); y.push(py[selected], py[at], null);
        }
        x.push(px[selected]); y.push(py[selected]);
        return { x, y };
      };
      const traces = () => {
        const [px, py] = coordinates(), line = lines(), pick = chosen();
        return [
          { type: kind, mode: "lines", x: line.x, y: line.y, hoverinfo: "skip", showlegend: false, line: { color: "rgba(60,60,60,0.35)", width: 1 } },
          ...groups().map((group) => ({
            type: kind, mode: "markers", name: group.name, x: group.members.map((i) => px[i]), y: group.members.map((i) => py[i]),
            customdata: group.members, text: group.members.map((i) => escape(describe(i))), hovertemplate: "%{text}<extra></extra>",
            marker: { size, opacity: 0.8, line: { width: 0 }, ...group.marker },
          })),
          { type: kind, mode: "lines+markers", x: pick.x, y: pick.y, hoverinfo: "skip", showlegend: false,
            line: { color: "#000", width: 2 }, marker: { size: size + 6, color: "rgba(0,0,0,0)", line: { color: "#000", width: 2 } } },
        ];
      };
      const bare = { showgrid: false, zeroline: false, showticklabels: false, ticks: "", title: { text: "" } };
      const draw = () => Plotly.react(plot, shown(traces()), layout({ xaxis: bare, yaxis: bare, margin: { l: 8, r: 8, t: 8, b: 8 }, legend: { orientation: "h", x: 0, y: -0.02, yanchor: "top", itemsizing: "constant" } }), CONFIG);

      let output = null;
      const filter = () => {
        const line = lines();
        Plotly.restyle(plot, { x: [line.x], y: [line.y] }, [0]);
        output.textContent = `× ${format(threshold)}: ${line.shown.toLocaleString("en")} of the ${edges.strength.length.toLocaleString("en")} strongest`;
        box.dataset.shown = line.shown;
      };
      if (edges) {
        const sorted = [...edges.strength].sort((a, b) => a - b);
        const low = sorted[0], high = sorted[sorted.length - 1];
        const slider = element("input", { type: "range", id: `threshold-${number}`, min: 0, max: 100, step: 1, value: 75 });
        output = element("output", { for: `threshold-${number}` });
        // Even steps of the slider are even steps in how many edges are left.
        const at = (value) => (high > low ? sorted[Math.min(sorted.length - 1, Math.floor((value / 100) * sorted.length))] : low);
        threshold = at(75);
        slider.addEventListener("input", () => { threshold = at(Number(slider.value)); slider.setAttribute("aria-valuetext", `${format(threshold)} times uniform`); filter(); });
        box.append(element("label", { for: `threshold-${number}` }, "Edges at least as strong as ", output), slider);
        if (panel.searched < count) box.append(element("p", {}, `The strongest were looked for among ${panel.searched.toLocaleString("en")} of the drawn rows.`));
        if (!(high > low)) box.append(element("p", {}, "All these edges are equally strong."));
      }
      draw().then(() => {
        drawn += 1;
        const row = (event) => event.points.map((p) => p.customdata).find((i) => i !== undefined);
        plot.on("plotly_hover", (event) => { const i = row(event); if (i !== undefined && selected === null) show(i); });
        plot.on("plotly_click", (event) => { const i = row(event); if (i !== undefined) choose(i); });
        if (edges) filter();
      });
      const highlight = () => {
        const pick = chosen(), last = plot.data.length - 1;
        Plotly.restyle(plot, { x: [pick.x], y: [pick.y] }, [last]);
      };
      return { draw, highlight };
    };

    const panels = data.panels.map(makePanel);
    input.addEventListener("change", () => {
      const i = place.get(Number(input.value));
      if (input.value === "" ) choose(null);
      else if (i === undefined) detail.replaceChildren(element("p", {}, `Row ${input.value} is not among the drawn rows.`));
      else choose(i);
    });
    clear.addEventListener("click", () => { input.value = ""; choose(null); });
    return panels.map((panel) => panel.draw);
  };

  // What is folded is drawn when it is opened: before that it has no size.
  const redraw = [];
  const begin = (root) => {
    const mine = (box) => box.closest("details.folded:not([open])") === null && !box.dataset.begun;
    for (const box of root.querySelectorAll("[data-plot]")) {
      if (!mine(box)) continue;
      box.dataset.begun = "1";
      const draw = () => drawPlot(box, page.plots[box.dataset.plot]);
      draw().then(() => { drawn += 1; });
      redraw.push(draw);
    }
    for (const box of root.querySelectorAll("[data-finder]")) {
      if (!mine(box)) continue;
      box.dataset.begun = "1";
      redraw.push(find(page.finders[box.dataset.finder], box));
    }
    for (const box of root.querySelectorAll("#explorer")) {
      if (!mine(box) || !page.explorer) continue;
      box.dataset.begun = "1";
      redraw.push(...explore(page.explorer, box));
    }
    hint();
  };
  window.difformerReport = { drawn: () => drawn };
  unpack().then(() => {
    begin(document);
    for (const box of document.querySelectorAll("details")) box.addEventListener("toggle", () => { begin(box); hint(); });
    dark.addEventListener("change", () => redraw.forEach((draw) => draw()));
    window.addEventListener("resize", hint);
  });
})();
