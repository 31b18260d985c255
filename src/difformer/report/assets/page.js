"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const FONT = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif", size: 13, color: "#1a1a1a" };
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const AXIS = { gridcolor: "#e6e6e6", zerolinecolor: "#bbb", automargin: true };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down", "star", "pentagon", "hexagon"];
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const format = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  let drawn = 0;

  const layout = (own) => ({
    font: FONT, paper_bgcolor: "#fff", plot_bgcolor: "#fff", hovermode: "closest",
    margin: { l: 60, r: 12, t: 12, b: 50 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    ...own,
    xaxis: { ...AXIS, ...(own.xaxis || {}) }, yaxis: { ...AXIS, ...(own.yaxis || {}) },
  });

  const element = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  for (const box of document.querySelectorAll("[data-plot]")) {
    const plot = page.plots[box.dataset.plot];
    Plotly.newPlot(box, plot.data, layout(plot.layout), CONFIG).then(() => { drawn += 1; });
  }

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
      else parts.push(`value ${data.value[i]}`);
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
      const how = data.projections[0] === "pca" ? "Seen by its two principal components." : "Seen by t-SNE.";
      controls.append(element("p", {}, how));
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
      if (!data.classes) return [{ name: "rows", members: data.rows.map((_, i) => i), marker: { color: data.value, colorscale: "Viridis", showscale: true, colorbar: { thickness: 10 } } }];
      const byClass = new Map();
      data.y.forEach((y, i) => { if (!byClass.has(y)) byClass.set(y, []); byClass.get(y).push(i); });
      return [...byClass.keys()].sort((a, b) => a - b).map((y) => ({
        name: escape(className(y)), members: byClass.get(y),
        marker: { color: y < 0 ? "#bbbbbb" : data.colours[y % data.colours.length], symbol: SYMBOLS[Math.max(0, y) % SYMBOLS.length] },
      }));
    };

    const makePanel = (panel, number) => {
      const plot = element("div", { class: "plot", role: "img", "aria-label": `${panel.title}: ${count} rows in two dimensions, coloured by class. Choose a row by its number to have its influences as a table.` });
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
      const draw = () => Plotly.react(plot, traces(), layout({ xaxis: bare, yaxis: bare, margin: { l: 8, r: 8, t: 8, b: 8 }, legend: { orientation: "h", x: 0, y: -0.02, yanchor: "top", itemsizing: "constant" } }), CONFIG);

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
      Plotly.newPlot(plot, traces(), layout({ xaxis: bare, yaxis: bare, margin: { l: 8, r: 8, t: 8, b: 8 }, legend: { orientation: "h", x: 0, y: -0.02, yanchor: "top", itemsizing: "constant" } }), CONFIG).then(() => {
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
  };

  const root = document.getElementById("explorer");
  if (root && page.explorer) explore(page.explorer, root);
  window.difformerReport = { drawn: () => drawn };
})();
