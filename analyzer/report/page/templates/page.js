"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const live = document.getElementById("live");
  const SVG = "http://www.w3.org/2000/svg";

  // Every text goes through text nodes and attributes: names are never taken for markup.
  function make(space, tag, attributes, children) {
    const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
  const svg = (tag, attributes, ...children) => make(SVG, tag, attributes, children);
  // A name breaks after a separator, and within a word only where that is longer than its column.
  const worded = (name) => name.split(/(?<=[/_.:@-])(?=[^/_.:@-])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
  const bdi = (text, attributes) => el("bdi", attributes, ...worded(String(text ?? "")));

  const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  function ms(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (!(size > 0 && size < 0.1)) return grouped(value, 3);
    return value.toFixed(Math.min(12, 2 - Math.floor(Math.log10(size))));
  }
  function margin(half) {
    if (half === null || !(half > 0)) return "";
    return grouped(half, Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(half)))));
  }
  // Decimals of a column of latencies, the same in every row, so that they can be compared by eye.
  const decimals = (values) => { const most = Math.max(0, ...values.filter((one) => one !== null)); return most >= 100 ? 3 : most >= 0.1 ? 4 : 5; };
  const fixed = (value, digits) => (value === null || value === undefined ? "–" : value > 0 && value < 0.5 * 10 ** -digits ? `<${(10 ** -digits).toFixed(digits)}` : grouped(value, digits));
  const percent = (value) => (value === null || value === undefined ? "–" : value > 0 && value < 0.005 ? "<1%" : `${Math.round(100 * value)}%`);
  const ratio = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));
  function quantity(value) {
    if (value === null || value === undefined) return "–";
    const units = ["", " k", " M", " G", " T"];
    let index = 0;
    while (Math.abs(value) >= 999.5 && index < 4) { value /= 1000; index += 1; }
    return (value >= 99.95 || value === Math.round(value) ? value.toFixed(0) : value.toPrecision(3)) + units[index];
  }
  const colour = (op, model = data) => `c${model.colours[op] ?? "r"}`; // by rank, in a model or over all
  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  function meter(share, kind, most = 1) {
    return el("span", { class: "meter" },
      el("span", { class: "track", "aria-hidden": "true" }, el("i", { class: kind || "c0", style: `width:${Math.max(0, Math.min(100, (100 * share) / (most || 1)))}%` })),
      el("span", { class: "figure" }, percent(share)));
  }
  function keyed(kind, key, digits = 12) {
    return key === null || key === undefined ? "–" : el("code", { class: "key", title: `${kind} ${key}`, [`data-${kind}`]: key }, key.slice(0, digits));
  }
  function save(name, text) {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  function csv(columns, rows) {
    const cell = (value) => {
      let text = value === null || value === undefined ? "" : String(value);
      if (/^[=+\-@\t\r]/.test(text) && isNaN(Number(text))) text = `'${text}`; // a name must not be a formula
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [columns.map((one) => cell(one.id)), ...rows.map((row) => columns.map((one) => cell(one.value(row))))].map((line) => line.join(",")).join("\n") + "\n";
  }

  // A table that sorts, filters and searches. A column has id, title, value(row), and cell(row) where that is not its value.
  function table(place, every, rows, { label, order, descending, first = 30, tools = [], words, keep = () => true, attributes, file }) {
    const columns = every.filter((one) => !one.file); // the others are for files only
    let by = columns.find((one) => one.id === order), down = descending, all = false;
    const query = words ? el("input", { type: "search", placeholder: "Search names, operators, shapes, keys", "aria-label": `Search ${label}` }) : null;
    const count = el("span", { class: "count", role: "status" });
    const head = el("tr", null), body = el("tbody", null);
    const more = el("button", { type: "button", class: "all", onclick: () => { all = true; draw(); } });
    const heads = columns.map((column) => {
      const cell = el("th", { scope: "col", class: [column.number ? "n" : "", column.kind || ""].join(" ").trim() || null, title: column.hint },
        el("button", { type: "button", onclick: () => { down = by === column ? !down : Boolean(column.number); by = column; draw(); } }, column.title));
      head.append(cell);
      return cell;
    });
    let shown = [];
    function draw() {
      const wanted = query ? query.value.trim().toLowerCase().split(/\s+/).filter(Boolean) : [];
      shown = rows.filter((row) => keep(row) && wanted.every((word) => words(row).includes(word)));
      const sign = down ? -1 : 1;
      shown.sort((one, other) => {
        const a = by.value(one), b = by.value(other);
        if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1; // what is not known comes last
        if (b === null || b === undefined) return -1;
        return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
      });
      heads.forEach((cell, index) => {
        if (columns[index] === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      const visible = all ? shown : shown.slice(0, first);
      body.replaceChildren(...visible.map((row) => el("tr", attributes ? attributes(row) : null, ...columns.map((column) => {
        const content = column.cell ? column.cell(row) : String(column.value(row) ?? "–");
        return el("td", { class: [column.number ? "n" : "", column.kind || ""].join(" ").trim() || null }, ...(Array.isArray(content) ? content : [content]));
      }))));
      more.hidden = visible.length === shown.length;
      more.textContent = `Show all ${shown.length}`;
      count.textContent = shown.length === rows.length ? `${rows.length} rows` : `${shown.length} of ${rows.length} rows`;
    }
    if (query) query.addEventListener("input", draw);
    const down_ = file ? el("button", { type: "button", onclick: () => save(file, csv(every, shown)) }, "CSV") : null;
    if (query || tools.length || down_) place.append(el("div", { class: "tools" }, query, ...tools, count, down_));
    place.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", { class: "data" }, el("thead", null, head), body)), more);
    draw();
    return draw;
  }

  const hold = (model, brick) => model.bricks[brick];

  function layers(place, model) {
    const total = model.whole || 1, whole = model.whole !== null; // a share of a part would say nothing
    const each = model.layers.brick.map((one, index) => ({ brick: hold(model, one), name: model.layers.name[index], executed: model.layers.executed[index], index, path: model.layers.path[index], sum: hold(model, one).ms }));
    const unique = model.bricks.map((brick, number) => {
      const at = model.layers.brick.indexOf(number);
      return { brick, name: model.layers.name[at], executed: model.layers.executed[at], index: at, path: 0, sum: brick.ms === null ? null : brick.ms * brick.count };
    });
    for (const row of [...each, ...unique]) row.words = [row.name, row.executed, row.brick.op, row.brick.fused, row.brick.reads, row.brick.writes, row.brick.key].join(" ").toLowerCase();
    const ops = [...new Set(model.bricks.map((one) => one.op))].sort();
    const select = el("select", { "aria-label": "Operator" }, el("option", { value: "" }, "All operators"), ...ops.map((op) => el("option", { value: op }, op)));
    const critical = el("input", { type: "checkbox" });
    const views = ["Each layer", "Each brick"].map((title, index) => el("button", { type: "button", "aria-pressed": String(index === 0) }, title));
    const box = el("div", null);
    let bricks = 2 * unique.length <= each.length; // of a model that repeats itself, what repeats says more
    const bounded = model.roofs !== null, branched = model.layers.path.includes(0) && model.layers.path.includes(1);
    const lower = model.bricks.some((one) => one.lower !== null && one.ms !== null && one.lower < 0.999 * one.ms);
    function show() {
      views.forEach((one, index) => one.setAttribute("aria-pressed", String(bricks === (index === 1))));
      box.replaceChildren();
      const sums = (bricks ? unique : each).map((row) => row.sum), most = Math.max(0, ...sums) / total;
      const digits = decimals(model.bricks.map((one) => one.ms)), broad = decimals(sums);
      const columns = [
        { id: "position", title: "#", file: bricks, number: true, kind: "place", value: (row) => row.index, hint: "Place in the model's order" },
        { id: "layer", title: bricks ? "First layer" : "Layer", kind: "layer", value: (row) => row.name, cell: (row) => [bdi(row.name), row.executed ? el("small", null, bdi(row.executed)) : null].filter(Boolean) },
        { id: "operator", title: "Operator", value: (row) => row.brick.op, cell: (row) => [el("span", { class: "op" }, el("i", { class: `dot ${colour(row.brick.op, model)}` }), bdi(row.brick.op), row.path && branched ? el("span", { class: "path", title: "on the critical path" }, " ●") : null), row.brick.fused ? el("small", null, bdi(row.brick.fused)) : null].filter(Boolean) },
        { id: "shapes", title: "Reads [weight] → writes", kind: "shapes", value: (row) => `${row.brick.reads} → ${row.brick.writes}`, cell: (row) => bdi(`${row.brick.reads} → ${row.brick.writes}`) },
        { id: "ms", title: bricks ? "Each, ms" : "Time, ms", number: true, value: (row) => row.brick.ms, cell: (row) => fixed(row.brick.ms, digits) },
        { id: "half_ms", title: "±95%", number: true, kind: "pm", value: (row) => row.brick.half, cell: (row) => (row.brick.half === null ? "" : fixed(row.brick.half, digits)) },
        { id: "count", title: "×", number: true, value: (row) => row.brick.count, hint: "How often the brick occurs in the model" },
        ...(bricks ? [{ id: "total_ms", title: "All, ms", number: true, value: (row) => row.sum, cell: (row) => fixed(row.sum, broad) }] : []),
        { id: "share", title: "Share", number: true, kind: "share", value: (row) => (row.sum === null || !whole ? null : row.sum / total), cell: (row) => (row.sum === null || !whole ? "–" : meter(row.sum / total, colour(row.brick.op, model), most)), hint: "Of the whole model" },
        ...(bounded ? [
          { id: "bound_ms", title: "Bound, ms", number: true, value: (row) => row.brick.bound, cell: (row) => [fixed(row.brick.bound, digits), row.brick.by ? el("small", null, row.brick.by) : null].filter(Boolean), hint: "What the machine's ceilings allow at least" },
          { id: "headroom", title: "Headroom", number: true, value: (row) => row.brick.headroom, cell: (row) => (row.brick.headroom === null ? el("span", { title: row.brick.note }, "–") : `${ratio(row.brick.headroom)}×`), hint: "Time / bound" },
          { id: "bound_by", file: true, value: (row) => row.brick.by },
        ] : []),
        ...(lower ? [{ id: "lower_ms", title: "Fastest stored, ms", number: true, value: (row) => row.brick.lower, cell: (row) => fixed(row.brick.lower, digits), hint: "Over all stacks and algorithms that are stored" }] : []),
        { id: "measurement", file: true, value: (row) => row.brick.id },
        { id: "brick", title: "Brick", value: (row) => row.brick.key, cell: (row) => keyed("brick", row.brick.key, 8), hint: "Key in the database" },
      ];
      const draw = table(box, columns, bricks ? unique : each, {
        label: "layers", order: bricks ? "total_ms" : "ms", descending: true, words: (row) => row.words, file: "layers.csv",
        keep: (row) => (!select.value || row.brick.op === select.value) && (!critical.checked || row.path),
        attributes: (row) => ({ "data-brick": row.brick.key, "data-measurement": row.brick.id, title: row.brick.id ? `measurement ${row.brick.id}, ${row.brick.verdict}` : row.brick.ms === null ? "not measured" : "not measured: read between other sizes" }),
        tools: [select, bricks || !branched ? null : el("label", { class: "tick" }, critical, el("span", null, el("span", { class: "path" }, "● "), "On the critical path")), ...views],
      });
      select.onchange = critical.onchange = draw;
    }
    views.forEach((one, index) => one.addEventListener("click", () => { bricks = index === 1; if (bricks) critical.checked = false; show(); }));
    place.append(box);
    show();
  }

  function legend(ops, model) {
    return el("ul", { class: "legend" }, ...ops.map((op) => el("li", null, el("i", { class: `dot ${colour(op, model)}` }), bdi(op))));
  }
  function caption(place) {
    const said = el("p", { class: "said", "aria-live": "polite" }, "Point at a mark, or step through with the arrow keys.");
    place.append(said);
    return (text) => { said.textContent = text; };
  }
  // Marks of a picture are one stop of the Tab key; arrows step through them.
  function stepped(marks, say) {
    marks.forEach((mark, index) => {
      mark.node.setAttribute("tabindex", index === 0 ? "0" : "-1");
      mark.node.setAttribute("role", "img");
      mark.node.setAttribute("aria-label", mark.text);
      mark.node.addEventListener("focus", () => say(mark.text));
      mark.node.addEventListener("pointerenter", () => say(mark.text));
      mark.node.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        const next = event.key === "Home" ? marks[0] : event.key === "End" ? marks[marks.length - 1] : step ? marks[index + step] : null;
        if (!next) return;
        event.preventDefault();
        mark.node.setAttribute("tabindex", "-1");
        next.node.setAttribute("tabindex", "0");
        next.node.focus();
      });
    });
  }

  function roofline(place, model) {
    const dots = model.bricks.filter((one) => one.flops && one.bytes && one.ms > 0);
    if (!model.roofs || !dots.length) { if (!model.roofs) return; place.append(el("p", { class: "hint" }, "No brick of this model does arithmetic that is counted.")); return; }
    const W = 960, H = 430, L = 66, R = 120, T = 14, B = 46;
    const at = dots.map((one) => ({ one, x: one.flops / one.bytes, y: one.flops / one.ms / 1e6, ms: one.ms * one.count }));
    const total = at.reduce((sum, one) => sum + one.ms, 0);
    const levels = model.roofs.levels, top = model.roofs.compute;
    const ridge = levels.map(([, rate]) => top / rate);
    const decade = (values, low) => (low ? Math.floor : Math.ceil)(Math.log10((low ? Math.min : Math.max)(...values)) + (low ? -0.05 : 0.05));
    const x0 = decade([...at.map((one) => one.x), ...ridge], true), x1 = decade([...at.map((one) => one.x), ...ridge], false);
    const y0 = decade([...at.map((one) => one.y), top], true), y1 = decade([...at.map((one) => one.y), top * 1.3], false);
    const X = (value) => L + ((Math.log10(value) - x0) / (x1 - x0)) * (W - L - R);
    const Y = (value) => H - B - ((Math.log10(value) - y0) / (y1 - y0)) * (H - T - B);
    const power = (exponent) => (exponent >= 0 && exponent < 6 ? grouped(10 ** exponent, 0) : String(10 ** exponent));
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Roofline: rate of arithmetic over arithmetic intensity" });
    for (let e = x0; e <= x1; e += 1) picture.append(svg("line", { class: "grid", x1: X(10 ** e), x2: X(10 ** e), y1: T, y2: H - B }), svg("text", { x: X(10 ** e), y: H - B + 16, "text-anchor": "middle" }, power(e)));
    for (let e = y0; e <= y1; e += 1) picture.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: Y(10 ** e), y2: Y(10 ** e) }), svg("text", { x: L - 7, y: Y(10 ** e) + 4, "text-anchor": "end" }, power(e)));
    picture.append(svg("text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle" }, "Arithmetic intensity, FLOP/byte"), svg("text", { x: -(H - B) / 2, y: 14, transform: "rotate(-90)", "text-anchor": "middle" }, "10⁹ FLOP/s"));
    const clip = 10 ** x0;
    for (const [name, rate] of levels) {
      const knee = Math.max(clip, top / rate), start = Math.max(clip, 10 ** y0 / rate);
      if (knee > start) picture.append(svg("line", { class: "edge", x1: X(start), y1: Y(start * rate), x2: X(knee), y2: Y(top) }, svg("title", null, `${name}: ${quantity(rate)} ·10⁹ bytes/s`)));
    }
    const leftmost = Math.max(clip, Math.min(...ridge));
    picture.append(svg("line", { class: "edge", x1: X(leftmost), x2: W - R, y1: Y(top), y2: Y(top) }), svg("text", { x: W - R + 5, y: Y(top) + 4 }, `${quantity(top)} GFLOP/s`));
    at.sort((one, other) => other.ms - one.ms);
    const marks = at.map(({ one, x, y, ms: sum }) => {
      const node = svg("circle", { class: `spot ${colour(one.op, model)}`, cx: X(x), cy: Y(y), r: 4 + 20 * Math.sqrt(sum / total), "data-brick": one.key, "data-measurement": one.id });
      const text = `${one.op}, ${one.reads} → ${one.writes}: ${counted(one.count, "layer")} of ${ms(one.ms)} ms, ${quantity(one.flops / one.ms / 1e6)} GFLOP/s at ${quantity(x)} FLOP/byte` + (one.headroom === null ? (one.note ? `; ${one.note}` : "") : `; bound ${ms(one.bound)} ms by ${one.by}, headroom ${ratio(one.headroom)}×`);
      node.append(svg("title", null, text));
      picture.append(node);
      return { node, text };
    });
    place.append(picture, legend([...new Set(at.map(({ one }) => one.op))].slice(0, 12), model),
      el("p", { class: "hint" }, `A mark is a brick, its area the time of all its layers. Slopes are bandwidths, from left to right: ${[...levels].sort((a, b) => b[1] - a[1]).map(([name, rate]) => `${name} ${quantity(rate)} GB/s`).join(", ")}.`));
    stepped(marks, caption(place));
  }

  function timeline(place, model) {
    const count = model.layers.brick.length;
    const known = model.layers.brick.every((one) => hold(model, one).ms !== null);
    if (!known) { place.append(el("p", { class: "hint" }, "There is no timeline before every layer is measured.")); return; }
    const length = model.layers.brick.map((one) => Math.max(0, hold(model, one).ms));
    const row = [0];
    length.forEach((one, index) => row.push(row[index] + one));
    const path = model.layers.path.reduce((sum, one, index) => sum + (one ? length[index] : 0), 0);
    const branches = Math.max(...model.layers.lane) > 0;
    const box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline" });
    const zoom = el("input", { type: "range", min: "0", max: "6", step: "0.25", value: "0", "aria-label": "Zoom" });
    const views = ["One after the other", "Branches at once"].map((title, index) => el("button", { type: "button", "aria-pressed": String(index === 0) }, title));
    const critical = el("input", { type: "checkbox" });
    let parallel = false;
    place.append(el("div", { class: "tools" }, ...(branches ? views : []), branches ? el("label", { class: "tick" }, critical, "Critical path only") : null, el("label", { class: "tick" }, "Zoom", zoom),
      el("span", { class: "count" }, `${ms(row[count])} ms in a row, ${ms(path)} ms on the critical path`)), box);
    const say = caption(place);
    function draw() {
      const lanes = parallel ? Math.max(...model.layers.lane) + 1 : 1;
      const end = parallel ? Math.max(...model.layers.start.map((one, index) => one + length[index])) : row[count];
      const W = Math.round(Math.max(300, place.clientWidth - 4) * 2 ** Number(zoom.value)), H = parallel ? 26 : 46, T = 8;
      const height = T + lanes * H + 26, scale = (W - 24) / (end || 1);
      const picture = svg("svg", { width: W, height, viewBox: `0 0 ${W} ${height}`, role: "group", "aria-label": "Layers over time" });
      const raw = end / (W / 110), magnitude = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((one) => one * magnitude).find((one) => one >= raw);
      const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      for (let tick = 0; tick <= end * 1.0001; tick += step) picture.append(svg("line", { class: "grid", x1: 12 + tick * scale, x2: 12 + tick * scale, y1: 0, y2: height - 20 }), svg("text", { x: 12 + tick * scale, y: height - 6, "text-anchor": tick ? "middle" : "start" }, `${tick.toFixed(digits)}${tick ? "" : " ms"}`));
      const marks = model.layers.brick.map((number, index) => {
        const brick = hold(model, number), start = parallel ? model.layers.start[index] : row[index], lane = parallel ? model.layers.lane[index] : 0;
        const on = model.layers.path[index], off = critical.checked && !on;
        const node = svg("rect", { class: `job ${colour(brick.op, model)}${off ? " off" : ""}`, x: 12 + start * scale, y: T + lane * H, width: Math.max(0.6, length[index] * scale), height: H - 5, rx: 1.5, "data-brick": brick.key, "data-measurement": brick.id });
        const text = `${model.layers.name[index]}: ${brick.op}, ${ms(brick.ms)} ms, from ${ms(start)} to ${ms(start + length[index])} ms${on ? ", on the critical path" : ""}`;
        node.append(svg("title", null, text));
        picture.append(node);
        if (on && branches) picture.append(svg("rect", { x: 12 + start * scale, y: T + lane * H + H - 5, width: Math.max(0.6, length[index] * scale), height: 2.5, fill: "var(--ink)" }));
        return { node, text };
      });
      box.replaceChildren(picture);
      stepped(marks, say);
    }
    views.forEach((one, index) => one.addEventListener("click", () => { parallel = index === 1; views.forEach((view, at) => view.setAttribute("aria-pressed", String(at === index))); draw(); }));
    zoom.addEventListener("input", draw);
    critical.addEventListener("change", draw);
    addEventListener("resize", draw);
    place.append(legend([...new Set(model.bricks.map((one) => one.op))].filter((op) => op in model.colours), model));
    if (branches) place.append(el("p", { class: "hint" }, "The dark line below a layer marks the critical path. Branches at once is what the model's dependences allow, on as many cores as it takes and without contention."));
    draw();
  }

  function tree(place, model) {
    const length = model.layers.brick.map((one) => hold(model, one).ms);
    const total = model.whole || 1, whole = model.whole !== null;
    const digits = decimals([total]), most = Math.max(...model.outline.map(([begin, width, count]) => length.slice(begin, begin + width * count).reduce((sum, one) => sum + (one ?? 0), 0))) / total;
    const costs = (begin, end) => length.slice(begin, end).reduce((sum, one) => (one === null || sum === null ? null : sum + one), 0);
    function line(title, cost, kind) {
      return [el("span", { class: "title" }, ...title), el("span", { class: "n" }, cost === null ? "not known" : `${fixed(cost, digits)} ms`), cost === null || !whole ? el("span") : meter(cost / total, kind, most)];
    }
    function node([begin, width, count, inside]) {
      const brick = hold(model, model.layers.brick[begin]);
      const cost = costs(begin, begin + width * count);
      if (width === 1) {
        const times = count > 1 ? el("span", { class: "times" }, `${count} × `) : "";
        return el("div", { class: "leaf", "data-brick": brick.key, "data-measurement": brick.id }, ...line([times, el("i", { class: `dot ${colour(brick.op, model)}` }), bdi(brick.op), " ", bdi(model.layers.name[begin], { class: "note" })], cost, colour(brick.op, model)));
      }
      const last = model.layers.name[begin + width * count - 1];
      const title = [el("span", { class: "times" }, `${count} × `), `${counted(width, "layer")}`, " ", bdi(`${model.layers.name[begin]} … ${last}`, { class: "note" })];
      const details = el("details", null, el("summary", null, ...line(title, cost, "cr")));
      details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) details.append(el("p", { class: "hint" }, `One of ${count}, ${ms(cost === null ? null : cost / count)} ms each; names are of the first.`), ...inside.map(node)); });
      return details;
    }
    place.append(...model.outline.map(node));
  }

  function overview() {
    const { models, bricks, names, similarity } = data.overview;
    const far = models.filter((one) => one.headroom !== null).sort((one, other) => other.headroom - one.headroom);
    const lead = document.getElementById("all-lead");
    const open = models.filter((one) => one.timed < one.layers || one.error !== null).length, first = bricks.slice(0, 5);
    if (open) lead.append(`${open} of ${counted(models.length, "model")} ${open === 1 ? "is" : "are"} not measured in whole. `);
    if (first.length) {
      if (first[0].share === null) lead.append("Most of the measured time goes into ", el("strong", null, counted(first.length, "brick")));
      else lead.append(el("strong", null, percent(first.reduce((total, one) => total + one.share, 0))), " of the time goes into ", el("strong", null, counted(first.length, "brick")));
      lead.append(", the first of them ", bdi(`${first[0].op} ${first[0].reads} → ${first[0].writes}`), `, which ${counted(first[0].models, "model")} ${first[0].models === 1 ? "has" : "have"}.`);
    }
    if (far.length) lead.append(" Farthest from what the machine allows is ", el("strong", null, bdi(far[0].name)), `: ${ratio(far[0].headroom)} times its roofline.`);
    const analysed = models.some((one) => one.findings !== null), bounded = far.length > 0;
    const index = new Map(models.map((one, number) => [one, number]));
    table(document.getElementById("models"), [
      { id: "model", title: "Model", kind: "layer", value: (row) => row.name, cell: (row) => [el("a", { href: `#m${index.get(row)}` }, bdi(row.name)), row.error ? el("small", null, bdi(row.error)) : null].filter(Boolean) },
      { id: "measured_ms", title: "Measured, ms", number: true, value: (row) => row.measured, cell: (row) => fixed(row.measured, 3) },
      { id: "half_ms", title: "±95%", number: true, kind: "pm", value: (row) => row.half, cell: (row) => (row.half === null ? "" : fixed(row.half, 3)) },
      { id: "estimate_ms", title: "Estimate, ms", number: true, value: (row) => row.estimate, cell: (row) => fixed(row.estimate, 3) },
      { id: "ratio", title: "Ratio", number: true, value: (row) => row.ratio, cell: (row) => ratio(row.ratio), hint: "Estimate / measured" },
      ...(bounded ? [
        { id: "bound_ms", title: "Bound, ms", number: true, value: (row) => row.bound, cell: (row) => fixed(row.bound, 3), hint: "What the machine's ceilings allow at least" },
        { id: "headroom", title: "Headroom", number: true, value: (row) => row.headroom, cell: (row) => (row.headroom === null ? "–" : `${ratio(row.headroom)}×`), hint: "Sum of the bricks / bound" },
      ] : []),
      { id: "layers", title: "Layers", number: true, value: (row) => row.layers },
      { id: "unique", title: "Unique", number: true, value: (row) => row.unique },
      { id: "operator", title: "Most time in", value: (row) => row.first, cell: (row) => (row.first ? el("span", { class: "op" }, el("i", { class: `dot ${colour(row.first)}` }), bdi(row.first)) : "–") },
      { id: "share", title: "Share", number: true, kind: "share", value: (row) => row.share, cell: (row) => (row.share === null ? "–" : meter(row.share, colour(row.first))) },
      ...(analysed ? [
        { id: "findings", title: "Findings", number: true, value: (row) => row.findings },
        { id: "saving_ms", title: "Proven, ms", number: true, value: (row) => row.saving, cell: (row) => ms(row.saving), hint: "All proven findings together" },
      ] : []),
    ], models, { label: "models", order: bounded ? "headroom" : "measured_ms", descending: true, first: 200, words: (row) => row.name.toLowerCase(), file: "models.csv", attributes: (row) => ({ "data-model": row.model, "data-measurement": row.measurement }) });
    table(document.getElementById("bricks"), [
      { id: "operator", title: "Operator", value: (row) => row.op, cell: (row) => el("span", { class: "op" }, el("i", { class: `dot ${colour(row.op)}` }), bdi(row.op)) },
      { id: "shapes", title: "Reads [weight] → writes", kind: "shapes", value: (row) => `${row.reads} → ${row.writes}`, cell: (row) => bdi(`${row.reads} → ${row.writes}`) },
      { id: "total_ms", title: "All, ms", number: true, value: (row) => row.total, cell: (row) => fixed(row.total, decimals(bricks.map((one) => one.total))) },
      { id: "share", title: "Share", number: true, kind: "share", value: (row) => row.share, cell: (row) => (row.share === null ? "–" : meter(row.share, colour(row.op), bricks[0].share)) },
      { id: "count", title: "Layers", number: true, value: (row) => row.count },
      { id: "models", title: "Models", number: true, value: (row) => row.models, cell: (row) => el("span", { title: row.names }, String(row.models)) },
      { id: "brick", title: "Brick", value: (row) => row.key, cell: (row) => keyed("brick", row.key) },
    ], bricks, { label: "bricks", order: "total_ms", descending: true, first: 15, words: (row) => `${row.op} ${row.reads} ${row.writes} ${row.key} ${row.names}`.toLowerCase(), file: "bricks.csv", attributes: (row) => ({ "data-brick": row.key }) });
    document.getElementById("alike").append(el("div", { class: "scroll alike", tabindex: "0", role: "region", "aria-label": "Similarity" }, el("table", null,
      el("thead", null, el("tr", null, el("td"), ...names.map((name) => el("th", { scope: "col", title: name }, bdi(name))))),
      el("tbody", null, ...names.map((name, one) => el("tr", null, el("th", { scope: "row", title: name }, bdi(name)), ...similarity[one].map((value, other) => el("td", { title: `${name} and ${names[other]}: ${value}%`, style: `background:color-mix(in srgb, var(--c0) ${Math.round(value * 0.8)}%, transparent)` }, one === other ? "" : value ? String(value) : "·"))))))));
  }

  const drawn = new Set();
  function draw(number) {
    if (drawn.has(number)) return;
    drawn.add(number);
    const article = document.getElementById(`m${number}`), model = data.models[number];
    for (const [name, draws] of [["layers", layers], ["roof", roofline], ["timeline", timeline], ["tree", tree]]) {
      const place = article.querySelector(`div.${name}`);
      if (place) draws(place, model);
    }
  }

  // One model, or the overview of many: the address says which.
  const pick = document.getElementById("pick"), whole = document.getElementById("all");
  function follow() {
    const at = /^#m(\d+)(-|$)/.exec(location.hash);
    const number = at && Number(at[1]) < data.models.length ? Number(at[1]) : data.overview ? null : 0;
    for (const article of document.querySelectorAll("article.model")) article.hidden = Number(article.dataset.number) !== number;
    if (whole) whole.hidden = number !== null;
    if (pick) pick.value = number === null ? "" : String(number);
    if (number !== null) draw(number);
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (target && target.tagName !== "ARTICLE") target.scrollIntoView(); else scrollTo(0, 0);
    if (pick) live.textContent = number === null ? `All ${data.models.length} models` : data.models[number].name;
  }
  if (pick) pick.addEventListener("change", () => { location.hash = pick.value === "" ? "#all" : `#m${pick.value}`; });
  addEventListener("hashchange", follow);

  const theme = document.getElementById("theme"), root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => { theme.setAttribute("aria-pressed", String(dark())); theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-label", "Dark colours"); };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
  if (data.overview) overview();
  follow();
})();
