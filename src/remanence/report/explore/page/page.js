// The page asks the exact engine; it computes no risk itself.
const $ = (id) => document.getElementById(id);

const FIELDS = {
  noise_multiplier: { low: 0.1, high: 100, start: 1.1 },
  epsilon: { low: 0.1, high: 100, start: 8 },
  delta: { low: 1e-10, high: 0.01, start: 1e-5 },
  sample_rate: { low: 0.0001, high: 1, start: 0.01 },
  steps: { low: 1, high: 1000000, start: 1000, whole: true },
  candidates: { low: 2, high: 1000000, start: 100, whole: true },
  records_per_person: { low: 1, high: 100, start: 1, whole: true },
};
const state = { mode: "noise_multiplier" };
for (const [name, field] of Object.entries(FIELDS)) state[name] = field.start;

// Controls: a slider for the hand and a number for precision.

function toPosition(name, value) {
  const { low, high } = FIELDS[name];
  return 1000 * Math.log(value / low) / Math.log(high / low);
}

function fromPosition(name, position) {
  const { low, high, whole } = FIELDS[name];
  const value = Number((low * (high / low) ** (position / 1000)).toPrecision(3));
  return whole ? Math.round(value) : value;
}

function addControls() {
  for (const box of document.querySelectorAll(".setting")) {
    const name = box.dataset.name;
    const label = box.querySelector("label");
    const exact = document.createElement("input");
    const slider = document.createElement("input");
    slider.type = "range";
    slider.min = 0;
    slider.max = 1000;
    slider.step = 1;
    exact.type = "number";
    exact.step = "any";
    exact.id = name;
    slider.setAttribute("aria-label", `${label.textContent}, slider`);
    exact.addEventListener("input", () => exact.value !== "" && change(name, Number(exact.value)));
    slider.addEventListener("input", () => change(name, fromPosition(name, Number(slider.value))));
    FIELDS[name].show = (value, from) => {
      slider.value = toPosition(name, value);
      slider.setAttribute("aria-valuetext", String(value));
      if (document.activeElement !== exact || from === "all") exact.value = String(value);
    };
    box.append(exact, slider);
  }
}

function change(name, value) {
  state[name] = value;
  FIELDS[name].show(value);
  moved();
}

function showMode() {
  for (const radio of document.querySelectorAll("[name=mode]")) radio.checked = radio.value === state.mode;
  for (const name of ["noise_multiplier", "epsilon"]) {
    document.querySelector(`[data-name=${name}]`).hidden = name !== state.mode;
  }
}

// The address holds the settings, so that a page can be shared.

function settings() {
  const names = [state.mode, "delta", "sample_rate", "steps", "candidates", "records_per_person"];
  return new URLSearchParams(names.map((name) => [name, String(state[name])]));
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("epsilon")) state.mode = "epsilon";
  else if (given.has("noise_multiplier")) state.mode = "noise_multiplier";
  for (const name of Object.keys(FIELDS)) {
    const value = Number(given.get(name));
    if (given.has(name) && Number.isFinite(value)) state[name] = value;
  }
  showAll();
}

function showAll() {
  showMode();
  for (const name of Object.keys(FIELDS)) FIELDS[name].show(state[name], "all");
}

// Questions: an estimate while the hand moves, the certificate and the curves when it rests.

let asking = new AbortController();
let resting = 0;

async function ask(what, more = {}, signal = asking.signal) {
  const query = settings();
  for (const [name, value] of Object.entries(more)) query.set(name, value);
  const response = await fetch(`/api/${what}?${query}`, { signal });
  const found = await response.json();
  if (!response.ok) throw Object.assign(new Error("refused"), { found });
  return found;
}

// What belongs to earlier settings is dimmed until its own answer is there; after an error it stays so.

const PARTS = ["sentence", "dots", "meaning", "noise-curve", "rates", "alone", "elsewhere", "assumptions"];

function age() {
  for (const id of PARTS) $(id).classList.add("stale");
  $("answer").setAttribute("aria-busy", "true");
}

function renew(...ids) {
  for (const id of ids) $(id).classList.remove("stale");
  if (!PARTS.some((id) => $(id).classList.contains("stale"))) $("answer").setAttribute("aria-busy", "false");
}

function moved() {
  history.replaceState(null, "", `#${settings()}`);
  asking.abort();
  asking = new AbortController();
  clearTimeout(resting);
  age();
  run(ask("estimate").then((found) => {
    showDots(found.dots);
    if ($("sentence").classList.contains("stale")) $("sentence").textContent = `About ${found.most} …`;
  }));
  resting = setTimeout(() => run(answerAll()), 150);
}

async function answerAll() {
  const { signal } = asking; // ends with the next move
  showAnswer(await ask("bound", {}, signal));
  showNoise(await ask("noise-curve", {}, signal));
  showBudget(await ask("budget", {}, signal));
  showRates(await ask("rate-curve", {}, signal));
}

function run(promise) {
  promise.catch((error) => {
    if (error.name === "AbortError") return;
    const found = error.found ?? { error: "The page's server does not answer. Is remanence explore still running?" };
    complain($("problem"), found);
    if ($("sentence").classList.contains("stale")) $("sentence").textContent = "";
    $("answer").setAttribute("aria-busy", "false");
  });
}

function complain(box, found) {
  const lines = ["needs", "got", "hint"].filter((key) => found[key]).map((key) => `${key === "hint" ? "try" : key}: ${found[key]}`);
  box.textContent = [found.error, ...lines].join("\n");
  box.hidden = false;
}

// Answers.

function showAnswer(found) {
  $("problem").hidden = true;
  renew("sentence", "elsewhere", "assumptions");
  $("sentence").textContent = found.sentence;
  showDots(found.dots);
  $("command").textContent = found.command;
  $("python").textContent = found.python;
  $("assumptions").replaceChildren(...found.assumptions.map((text) => element("li", text)));
  state.solved = found.noise_multiplier;
  if (state.mode === "epsilon") {
    $("meaning").textContent = `That takes a noise multiplier of ${found.noise}.`;
    renew("meaning");
  }
}

function showBudget(found) {
  if (state.mode !== "epsilon") $("meaning").textContent = `These settings are (${found.budget}, ${state.delta})-DP.`;
  $("alone").textContent = `ε and δ alone, without the settings of DP-SGD, would prove ${found.alone} at most.`;
  renew("meaning", "alone");
}

function showNoise(found) {
  const here = state.mode === "noise_multiplier" ? state.noise_multiplier : state.solved;
  chart($("noise-curve"), { ...found, here, across: "noise multiplier" });
  renew("noise-curve");
}

function showRates(found) {
  chart($("rate-curve"), { ...found, here: state.sample_rate, across: "sampling rate" });
  $("rate-caption").textContent = `The same ε of ${found.budget}, another sampling rate, another risk.`;
  renew("rates");
}

// Pictures.

const SHAPES = {
  guess: "M-3.4 -3.4h6.8v6.8h-6.8z",
  extra: "M0 -4.4L4.4 0L0 4.4L-4.4 0z",
  rest: "M-1.2 0a1.2 1.2 0 1 0 2.4 0a1.2 1.2 0 1 0 -2.4 0z",
};

function showDots({ guess, extra }) {
  const picture = $("dots");
  renew("dots");
  if (!picture.childElementCount) {
    for (let place = 0; place < 1000; place += 1) {
      picture.append(shape("path", { transform: `translate(${5 + 10 * Math.floor(place / 20)} ${5 + 10 * (place % 20)})` }));
    }
  }
  [...picture.children].forEach((dot, place) => {
    const kind = place < guess ? "guess" : place < guess + extra ? "extra" : "rest";
    if (dot.getAttribute("class") !== kind) {
      dot.setAttribute("class", kind);
      dot.setAttribute("d", SHAPES[kind]);
    }
  });
  picture.setAttribute("aria-label", `Of 1000: ${guess} found by guessing, at most ${extra} more with the release.`);
}

function chart(picture, { points, baseline, here, across }) {
  const [left, right, top, bottom] = [46, 410, 26, 218];
  const xs = points.map(([x]) => Math.log(x));
  const highest = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((end) => Math.max(...points.map(([, y]) => y)) <= end) ?? 1;
  const x = (value) => left + (right - left) * (Math.log(value) - xs[0]) / (xs.at(-1) - xs[0]);
  const y = (share) => bottom - (bottom - top) * Math.min(share, highest) / highest;
  const parts = [];
  for (let tick = 0; tick <= 5; tick += 1) {
    const share = highest * tick / 5;
    parts.push(shape("path", { class: "grid", d: `M${left} ${y(share)}H${right}` }));
    parts.push(label(Number((1000 * share).toPrecision(3)), left - 6, y(share) + 4, "end"));
  }
  for (const base of [1, 2, 5]) {
    for (let power = -5; power <= 6; power += 1) {
      const value = Number(`${base}e${power}`);
      if (value < points[0][0] * 0.999 || value > points.at(-1)[0] * 1.001) continue;
      parts.push(shape("path", { class: "axis", d: `M${x(value)} ${bottom}v4` }), label(value, x(value), bottom + 17, "middle"));
    }
  }
  parts.push(shape("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
  parts.push(label(across, (left + right) / 2, 252, "middle"), label("times in 1000", 4, 11, "start"));
  parts.push(shape("path", { class: "level", d: `M${left} ${y(baseline)}H${right}` }), label("a guess", right, y(baseline) - 4, "end"));
  parts.push(shape("path", { class: "curve", d: points.map(([a, b], index) => `${index ? "L" : "M"}${x(a)} ${y(b)}`).join("") }));
  const inside = here >= points[0][0] && here <= points.at(-1)[0];
  if (inside) parts.push(shape("circle", { class: "here", r: 5, cx: x(here), cy: y(between(points, here)) }));
  picture.replaceChildren(...parts);
  const [first, last] = [points[0], points.at(-1)];
  picture.setAttribute("aria-label", `Times in 1000 against the ${across}: ${say(first[1])} at ${first[0]}, ${say(last[1])} at ${last[0]}.`);
}

function between(points, at) {
  const next = Math.max(1, points.findIndex(([x]) => x >= at));
  const [[x0, y0], [x1, y1]] = [points[next - 1], points[next]];
  return y0 + (y1 - y0) * (Math.log(at) - Math.log(x0)) / (Math.log(x1) - Math.log(x0));
}

const say = (share) => String(Number((1000 * share).toPrecision(3)));

function shape(kind, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function label(text, x, y, anchor) {
  const node = shape("text", { x, y, "text-anchor": anchor });
  node.textContent = text;
  return node;
}

function element(kind, text) {
  const node = document.createElement(kind);
  node.textContent = text;
  return node;
}

// A goal, and copies.

$("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  const goal = Number($("goal").value) / 1000;
  run(ask("solve", { max_success: goal }).then((found) => {
    state.mode = "noise_multiplier";
    showMode();
    change("noise_multiplier", found.noise_multiplier);
  }));
});

for (const radio of document.querySelectorAll("[name=mode]")) {
  radio.addEventListener("change", () => {
    state.mode = radio.value;
    if (state.mode === "noise_multiplier" && state.solved) state.noise_multiplier = Number(state.solved.toPrecision(6));
    showAll();
    moved();
  });
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText($(button.dataset.copy).textContent);
    $("copied").textContent = "Copied.";
  });
}

addControls();
readAddress();
moved();
window.addEventListener("hashchange", () => { readAddress(); moved(); });
