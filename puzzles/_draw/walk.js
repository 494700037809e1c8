// The script of a walk: it moves what the first frame has drawn, and loads nothing. assets.py puts
// __WORDS__, __MARKS__ and __VERSION__ in; until `operand` ends, it says what track.py and panel.py
// say in Python.
// Every walk on a page is found by its class and started once, whoever's copy of this runs first:
// hosts run scripts from places of their own, so `document.currentScript` says little.
/* global __WORDS__, __MARKS__ */

(() => {
'use strict';
const WORDS = __WORDS__, MARKS = __MARKS__;
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
    const wrong = always || faults.some(f => f.at === k && f.kind !== 'never-written');
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

// A prefetched array: the entries that a step reads.
const list = (data, number, panel) => {
  const o = data.operands[number], used = (o.used || []).map(decode);
  const cells = [...panel.querySelectorAll('.pz-cells i')], words = panel.querySelector('.pz-read');
  const place = flat => o.shape.map((_, a) => Math.floor(
    flat / o.shape.slice(a + 1).reduce((p, n) => p * n, 1)) % o.shape[a]).join(', ');
  return k => {
    const now = [...new Set(used.map(one => one[k]))].filter(n => n >= 0).sort((a, b) => a - b);
    cells.forEach((cell, n) => cell.classList.toggle('pz-used', now.includes(n)));
    if (!o.numbers) return;
    const known = n => n < o.numbers.length ? ' = ' + o.numbers[n] : '';
    words.textContent = now.length
      ? 'reads ' + now.map(n => '[' + place(n) + ']' + known(n)).join(', ') : 'not read';
  };
};

// Controls are made here: where no script runs there is nothing to control.
const ICONS = {
  first: ['first step', 'M4 3v10M12 3L7 8l5 5'],
  back: ['one step back', 'M10 3L5 8l5 5'],
  play: ['play', 'M5 3l8 5-8 5z'],
  next: ['one step on', 'M6 3l5 5-5 5'],
  last: ['last step', 'M12 3v10M4 3l5 5-5 5'],
};
const button = (words, inside, data) => {
  const b = document.createElement('button');
  b.type = 'button';
  b.innerHTML = inside;
  b.title = words;
  b.setAttribute('aria-label', words);
  Object.assign(b.dataset, data);
  return b;
};
// Buttons, slider and keys over `count` frames; `frame(k)` draws one and returns it in words.
const player = ({bar, slot, live, count, open, name, frame}) => {
  const keys = document.createElement('span'), slider = document.createElement('input');
  keys.className = 'pz-keys';
  keys.setAttribute('role', 'group');
  keys.setAttribute('aria-label', name + 's');
  for (const [key, [words, icon]] of Object.entries(ICONS)) {
    const svg = '<svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d="';
    keys.append(button(words.replace('step', name), svg + icon + '"/></svg>', {do: key}));
  }
  Object.assign(slider, {type: 'range', min: 0, max: count - 1, step: 1, value: open});
  slider.setAttribute('aria-label', name);
  if (count > 1) {
    bar.prepend(keys);
    slot.append(slider);
  }
  const play = keys.querySelector('[data-do=play]'), icon = play.querySelector('path');
  const paused = icon.getAttribute('d'), last = count - 1;
  let k = open, timer = 0;
  const show = to => {
    k = Math.min(Math.max(to, 0), last);
    slider.value = k;
    slider.setAttribute('aria-valuetext', frame(k));
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    icon.setAttribute('d', paused);
    play.title = 'play';
    play.setAttribute('aria-label', 'play');
    live.setAttribute('aria-live', 'polite');
  };
  const go = () => {
    if (timer) return stop();
    if (k === last) show(0);
    // A short walk slowly, a long one in about twenty seconds, never faster than the screen.
    const wait = Math.min(700, Math.max(40, 20000 / count));
    const stride = Math.max(1, Math.round(count * wait / 20000));
    icon.setAttribute('d', 'M4 3h2v10H4zM10 3h2v10h-2z');
    play.title = 'pause';
    play.setAttribute('aria-label', 'pause');
    live.setAttribute('aria-live', 'off');
    timer = setInterval(() => {
      if (!bar.isConnected) return stop();
      show(k + stride);
      if (k === last) stop();
    }, wait);
  };
  const jump = to => { stop(); show(to); };
  const doing = {first: () => jump(0), back: () => jump(k - 1), play: go,
    next: () => jump(k + 1), last: () => jump(last)};
  bar.addEventListener('click', event => {
    const button = event.target.closest('button[data-do]');
    if (button) doing[button.dataset.do]();
  });
  slider.addEventListener('input', () => jump(+slider.value));
  const bound = {' ': 'play', ArrowLeft: 'back', ArrowRight: 'next', Home: 'first', End: 'last'};
  const key = event => {
    const own = event.target.closest('button, summary'), what = bound[event.key];
    if (!what || (what === 'play' && own)) return;
    event.preventDefault();
    doing[what]();
  };
  show(k);
  return {slider, jump, key};
};
const links = (root, name, play) => {
  for (const span of root.querySelectorAll('[data-' + name + ']')) {
    const words = 'look at ' + (span.dataset.step || name + ' ' + (+span.dataset[name] + 1));
    const link = button(words, words, {});
    link.addEventListener('click', () => { play.jump(+span.dataset[name]); play.slider.focus(); });
    span.replaceWith(link);
  }
};

// The copies that a kernel makes by hand: a cursor over a picture that is there, and its words.
const film = (root, data) => {
  const find = name => root.querySelector('.pz-' + name);
  const roll = find('roll'), frames = find('frames'), here = find('here');
  const said = find('now-says'), live = find('moment');
  const x = root.dataset.edges.split(' ').map(Number);
  const play = player({
    bar: find('bar'), slot: find('reel'), live, count: data.says.length, open: data.open,
    name: 'moment',
    frame: k => {
      here.style.left = x[k] + 'px';
      here.style.width = x[k + 1] - x[k] + 'px';
      live.querySelector('b').textContent = k + 1;
      said.innerHTML = data.says[k];
      if (x[k] < roll.scrollLeft || x[k + 1] > roll.scrollLeft + roll.clientWidth) {
        roll.scrollLeft = x[k] - roll.clientWidth / 2;
      }
      return 'moment ' + (k + 1) + ': ' + said.textContent;
    }});
  links(root, 'moment', play);
  frames.addEventListener('click', event => {
    const at = event.clientX - frames.getBoundingClientRect().left;
    play.jump(x.findIndex(edge => edge > at) - 1);
    play.slider.focus({preventScroll: true});
  });
  return play;
};

const start = root => {
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const at = decode(data.at), work = decode(data.work);
  const parts = [...root.querySelectorAll('[data-operand]')].map(
    panel => operand(data, +panel.dataset.operand, panel));
  const lists = [...root.querySelectorAll('[data-list]')].map(
    panel => list(data, +panel.dataset.list, panel));
  const scalars = data.operands.reduce((sum, o) => sum + (o.role === 'scalar' ? o.bytes : 0), 0);
  const hand = data.hand ? [decode(data.hand.in), decode(data.hand.out)] : null;
  const cursor = root.querySelector('.pz-cursor'), time = root.querySelector('.pz-time');
  const step = root.querySelector('.pz-step'), ids = [...root.querySelectorAll('.pz-id b')];
  const core = root.querySelector('.pz-core'), meters = [...root.querySelectorAll('.pz-meter')];

  const programs = s => {
    const out = [];
    for (let a = data.grid.length - 1; a >= 0; a--) {
      out.unshift(s % data.grid[a]);
      s = Math.floor(s / data.grid[a]);
    }
    return out;
  };
  const did = w => {
    if (!w) return 'does no arithmetic';
    return !data.unit ? 'computes' : w === 1 ? '1 dot' : w + ' dots';
  };
  const walk = player({
    bar: root.querySelector('.pz-steps'), slot: root.querySelector('.pz-time .pz-slot'), live: step,
    count: data.kept, open: data.open, name: 'grid step',
    frame: k => {
      const p = programs(at[k]);
      parts.forEach(part => part.show(k));
      lists.forEach(show => show(k));
      ids.forEach((id, a) => { id.textContent = p[a]; });
      step.querySelector('b').textContent = (at[k] + 1).toLocaleString('en');
      core.className = 'pz-core pz-' + (work[k] ? 'work' : 'skipped');
      core.querySelector('.pz-did').textContent = did(work[k]);
      cursor.style.left = 100 * k / data.kept + '%';
      meters.forEach((meter, output) => {
        const sum = parts.reduce((s, part) => s + (part.output === !!output ? part.bytes(k) : 0),
          (output ? 0 : scalars) + (hand ? hand[output][k] : 0));
        meter.querySelector('b').textContent = amount(sum);
        meter.querySelector('.pz-full').style.width =
          (+meter.dataset.total ? 100 * sum / meter.dataset.total : 0) + '%';
      });
      return 'step ' + (at[k] + 1) + ', program ids ' + tuple(p) + '; '
        + parts.map(part => part.says(k)).join('; ') + '; the body ' + did(work[k]);
    }});
  if (data.kept > 1) links(root, 'go', walk);
  root.addEventListener('click', event => {
    if (!event.target.closest('button') && event.target.closest('.pz-panel')) walk.slider.focus();
  });
  const drag = event => {
    const box = time.getBoundingClientRect();
    walk.jump(Math.floor((event.clientX - box.left) / box.width * data.kept));
  };
  time.addEventListener('pointerdown', event => {
    if (event.target === walk.slider || event.button) return;
    event.preventDefault();
    walk.slider.focus({preventScroll: true});
    time.setPointerCapture(event.pointerId);
    drag(event);
  });
  time.addEventListener('pointermove', event => {
    if (time.hasPointerCapture(event.pointerId)) drag(event);
  });
  const copies = root.querySelector('.pz-copies[data-edges]');
  const copied = copies && film(copies, data.copies);
  // Where one of the two has a single frame, all keys are the other's.
  root.pzKey = event => {
    const inside = copies && (event.target.closest('.pz-copies') || data.kept === 1);
    (inside ? copied : walk).key(event);
  };
};

const OWN = '.pz-walk[data-script="__VERSION__"]';
for (const root of document.querySelectorAll(OWN)) {
  if (root.pzStarted) continue;
  root.pzStarted = true;
  try { start(root); } catch (error) { console.error('grid walk', error); }
}
// Notebooks take plain keys for commands ("a" adds a cell) before the focused element sees them;
// on the way down, the window is the only place before theirs. Save and run remain the host's.
window.pzKeys__VERSION__ = window.pzKeys__VERSION__ || (event => {
  const root = event.target.closest && event.target.closest(OWN);
  if (!root || !root.pzKey || event.ctrlKey || event.metaKey || event.altKey) return;
  if (['Tab', 'Enter', 'Escape', 'Shift'].includes(event.key)) return;
  event.stopImmediatePropagation();
  root.pzKey(event);
});
window.addEventListener('keydown', window.pzKeys__VERSION__, true); // the same one: added once
})();
