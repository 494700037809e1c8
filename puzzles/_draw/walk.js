// The script of a walk: it turns the pages that Python has drawn (frames.py), and loads nothing.
// Every figure on a page is found by its class and started once, whoever's copy of this runs first:
// hosts run scripts from places of their own, so `document.currentScript` says little.
// frames.py puts __VERSION__ in.

(() => {
'use strict';
const decode = text => {
  const out = [];
  let value = 0;
  for (const token of text.split(' ')) {
    const [d, n] = token.split('*');
    for (let i = n ? +n : 1; i > 0; i--) out.push(value += +d);
  }
  return out;
};
const ICONS = {
  first: ['first', 'M4 3v10M12 3L7 8l5 5'],
  back: ['one back', 'M10 3L5 8l5 5'],
  play: ['play', 'M5 3l8 5-8 5z'],
  next: ['one on', 'M6 3l5 5-5 5'],
  last: ['last', 'M12 3v10M4 3l5 5-5 5'],
};
const PAUSE = 'M4 3h2v10H4zM10 3h2v10h-2z';
const button = (words, inside, act) => {
  const b = document.createElement('button');
  b.type = 'button';
  b.innerHTML = inside;
  b.title = words;
  b.setAttribute('aria-label', words);
  b.addEventListener('click', act);
  return b;
};

const start = root => {
  const own = what => [...root.querySelectorAll(what)].filter(e => e.closest('.pz-book') === root);
  const data = JSON.parse(own('script[type="application/json"]')[0].textContent);
  const kept = data.kept.map(([texts, which, ends]) => {
    const w = decode(which), e = ends && decode(ends);
    return k => e ? texts[w[k]].slice(0, e[k]) : texts[w[k]];
  });
  const places = own('[data-s]').flatMap(element => element.dataset.s.split(' ').map(
    one => [element, one.replace(/\d+/, ''), kept[one.match(/\d+/)]]));
  const said = own('[data-say]'), [bar] = own('.pz-bar'), [slot] = own('.pz-slot');
  const [area] = own('.pz-area'), [here] = own('.pz-here'), [live] = own('[aria-live]');
  const last = data.pages - 1;
  const slider = document.createElement('input'), keys = document.createElement('span');
  let k = data.open, timer = 0;

  const show = to => {
    k = Math.min(Math.max(to, 0), last);
    root.style.setProperty('--k', k);
    for (const [element, what, at] of places) {
      if (what === 'html') element.innerHTML = at(k); else element.setAttribute(what, at(k));
    }
    slider.value = k;
    slider.setAttribute('aria-valuetext', said.map(e => e.textContent).join('; '));
    const roll = here && here.closest('.pz-roll'), left = here && here.offsetLeft;
    if (roll && (left < roll.scrollLeft || left + here.offsetWidth > roll.scrollLeft + roll.clientWidth)) {
      roll.scrollLeft = left - roll.clientWidth / 2;
    }
  };
  const playing = on => {
    clearInterval(timer);
    timer = 0;
    play.title = on ? 'pause' : 'play';
    play.setAttribute('aria-label', play.title);
    play.querySelector('path').setAttribute('d', on ? PAUSE : ICONS.play[1]);
    live.setAttribute('aria-live', on ? 'off' : 'polite');
  };
  const jump = to => { playing(false); show(to); };
  const go = () => {
    if (timer) return playing(false);
    if (k === last) show(0);
    playing(true);
    // A short walk slowly, a long one in about twenty seconds, never faster than the screen.
    const wait = Math.min(700, Math.max(40, 20000 / data.pages));
    const stride = Math.max(1, Math.round(data.pages * wait / 20000));
    timer = setInterval(() => {
      if (!bar.isConnected || k === last) return playing(false);
      show(k + stride);
    }, wait);
  };
  const moves = {first: () => jump(0), back: () => jump(k - 1), play: go,
    next: () => jump(k + 1), last: () => jump(last)};
  for (const [name, [words, icon]] of Object.entries(ICONS)) {
    const svg = '<svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d="';
    keys.append(button(words, svg + icon + '"/></svg>', moves[name]));
    keys.lastChild.dataset.do = name;
  }
  keys.className = 'pz-keys';
  keys.setAttribute('role', 'group');
  keys.setAttribute('aria-label', data.name + 's');
  const play = keys.querySelector('[data-do=play]');
  Object.assign(slider, {type: 'range', min: 0, max: last, step: 1, value: k});
  slider.setAttribute('aria-label', data.name);
  slider.addEventListener('input', () => jump(+slider.value));
  if (last) {
    bar.prepend(keys);
    slot.append(slider);
    area.addEventListener('click', event => {
      const box = area.getBoundingClientRect(), at = event.clientX - box.left;
      if (event.target === slider) return;
      const edges = area.dataset.edges && area.dataset.edges.split(' ');
      const lead = +area.dataset.lead || 0; // columns before the first page, and after the last
      const column = Math.floor(at / box.width * (data.pages + 2 * lead)) - lead;
      jump(edges ? edges.findIndex(x => x > at) - 1 : column);
      slider.focus({preventScroll: true});
    });
  }
  root.pzKey = event => {
    const bound = {' ': 'play', ArrowLeft: 'back', ArrowRight: 'next', Home: 'first', End: 'last'};
    const what = bound[event.key];
    if (!what || (what === 'play' && event.target.closest('button, summary'))) return;
    event.preventDefault();
    moves[what]();
  };
  show(k);
};

const OWN = '.pz-book[data-script="__VERSION__"]';
for (const root of document.querySelectorAll(OWN)) {
  if (root.pzKey) continue;
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
