"""The part of a walk's script that draws one operand; `_draw_track` and `_draw_panel` in Python."""

from __future__ import annotations

OPERAND = r"""
const decode = text => {
  const out = [];
  let value = 0;
  for (const token of text.split(' ')) {
    if (!token) continue;
    const [d, n] = token.split('*');
    for (let i = n ? +n : 1; i > 0; i--) out.push(value += +d);
  }
  return out;
};
const amount = bytes => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let u = 0;
  while (bytes >= 1024 && u < 4) { bytes /= 1024; u++; }
  // Three digits and ties to even, as Python has them: 128.5 KiB is 128 KiB here and there.
  const unit = u ? 10 ** Math.max(0, 2 - Math.floor(Math.log10(bytes))) : 1;
  const low = Math.floor(bytes * unit), rest = bytes * unit - low;
  return (low + (rest > 0.5 || (rest === 0.5 && low % 2))) / unit + ' ' + units[u];
};
const tuple = xs => xs.length === 1 ? '(' + xs[0] + ',)' : '(' + xs.join(', ') + ')';
const r = x => +x.toFixed(1);
const rect = (x, y, w, h) => `M${r(x)} ${r(y)}h${r(w)}v${r(h)}h-${r(w)}z`;

const operand = (data, number, panel) => {
  const o = data.operands[number], v = data.views[number], never = data.nevers[number];
  const axes = o.axes.map(decode), count = decode(o.count), output = o.role === 'output';
  const moved = o.moved ? decode(o.moved) : count;
  const moves = o.moves ? decode(o.moves) : count.map((c, k) => k ? c - count[k - 1] : c);
  const faults = data.faults.filter(f => f.operand === o.name);
  const always = faults.some(f => f.kind === 'misaligned');
  const block = k => axes.map(axis => axis[k]);
  const slice = b => v.lead.reduce(
    (s, a) => s * o.counts[a] + Math.min(Math.max(b[a], 0), o.counts[a] - 1), 0);
  const spans = b => b.map((i, a) => i * o.stride[a] - o.low[a]);
  const outside = b => spans(b).some((s, a) => s < -o.low[a] || s >= o.shape[a]);
  const place = b => {
    const start = spans(b), spot = v.one ? 0 : slice(b);
    const along = (a, whole, scale) => {
      if (a === null) return [0, whole];
      const low = Math.max(start[a], 0), high = Math.min(start[a] + o.sizes[a], o.shape[a]);
      if (high <= low) return start[a] < 0 ? [-18, 14] : [whole + 4, 14];
      if ((high - low) * scale < 2) return [Math.floor(low * scale), 2];
      return [low * scale, (high - low) * scale];
    };
    const [x, w] = along(v.cols, v.w, v.kx), [y, h] = along(v.rows, v.h, v.ky);
    return [v.x[spot] + x, v.y[spot] + y, w, h];
  };
  // Path data of all blocks in the order of their first (second) coming, one string per slice:
  // what lies before a step is then the beginning of a string.
  const layers = [{}, {}], seen = new Map(), before = new Array(data.kept).fill(false);
  const known = before.slice();
  const add = (layer, k, b) => {
    if (outside(b)) return;
    const key = v.one ? slice(b) : 0, piece = rect(...place(b));
    const s = layer[key] || (layer[key] = {d: '', at: [], ends: [], drawn: new Set()});
    if (s.drawn.has(piece)) return;
    s.drawn.add(piece);
    s.d += piece;
    s.at.push(k);
    s.ends.push(s.d.length);
  };
  for (let k = 0; k < data.kept; k++) {
    const b = block(k), key = b.join();
    let times = seen.get(key);
    if (times === undefined) { add(layers[0], k, b); times = 0; }
    else known[k] = true;
    before[k] = times > 0;
    if (moves[k] && ++times === 2) add(layers[1], k, b);
    seen.set(key, times);
  }
  const upTo = (layer, key, k) => {
    const s = layer[key];
    if (!s) return '';
    let low = 0, high = s.at.length;
    while (low < high) { const m = (low + high) >> 1; if (s.at[m] < k) low = m + 1; else high = m; }
    return low ? s.d.slice(0, s.ends[low - 1]) : '';
  };
  const find = name => panel.querySelector('.pz-' + name);
  const [nevers, lines, seens, twices, now] = ['never', 'lines', 'seen', 'twice', 'now'].map(find);
  const where = find('where').firstElementChild, dot = find('dot'), so = find('sofar');
  const words = dot.nextElementSibling, which = find('slice').querySelector('b');
  const noun = output ? ' write' : ' fetch', many = output ? ' writes' : ' fetches';
  const state = k => {
    if (outside(block(k))) return 'outside';
    if (!moves[k]) return output ? 'held' : 'reused';
    return (before[k] ? 're' : '') + (output ? 'written' : 'fetched');
  };
  const show = k => {
    const b = block(k), s = state(k), shown = slice(b), key = v.one ? shown : 0;
    const wrong = always || faults.some(f => f.at === k && f.kind !== 'unwritten');
    const mark = wrong ? 'fault' : MARKS[s];
    const [x, y, w, h] = place(b);
    const i = Math.min(w, h) >= 9 ? 1 : -1;
    now.setAttribute('d', rect(x + i, y + i, w - 2 * i, h - 2 * i));
    const over = known[k] && (s === 'reused' || s === 'held') ? ' pz-over' : '';
    now.setAttribute('class', 'pz-now pz-m-' + mark + over);
    seens.setAttribute('d', upTo(layers[0], key, k));
    twices.setAttribute('d', upTo(layers[1], key, k));
    if (v.one) {
      const [area, hatch] = never[key] || ['', ''];
      nevers.setAttribute('d', area);
      lines.setAttribute('d', hatch);
      which.textContent = shown;
    }
    where.textContent = tuple(b);
    dot.className = 'pz-dot pz-d-' + mark;
    words.textContent = WORDS[s];
    so.textContent = count[k].toLocaleString('en') + (count[k] === 1 ? noun : many) + ', '
      + amount(moved[k] * o.each);
  };
  const says = k => o.name + ' block ' + tuple(block(k)) + ' ' + WORDS[state(k)];
  return {show, says, output, bytes: k => moved[k] * o.each};
};
""".strip()
