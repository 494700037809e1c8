// The sliders of a roofline: they choose a row of its table, and move the point of the plot there.
// Without scripts the table stays open, and the sliders stay hidden. Every plot is started once.

(() => {
'use strict';
for (const root of document.querySelectorAll('.pz-roofline:not([data-ready])')) {
  const dials = [...root.querySelectorAll('input')], rows = [...root.querySelectorAll('tbody tr')];
  const [now] = root.querySelectorAll('.pz-chosen-says'), [point] = root.querySelectorAll('.pz-point');
  const turn = () => {
    let k = 0;
    for (const dial of dials) {
      const value = dial.dataset.values.split(' ')[dial.value];
      k = k * (+dial.max + 1) + +dial.value;
      dial.nextElementSibling.textContent = value;
      dial.setAttribute('aria-valuetext', value);
    }
    rows.forEach((row, n) => row.classList.toggle('pz-chosen', n === k));
    const [x, y] = rows[k].dataset.at.split(' ');
    point.setAttribute('cx', x);
    point.setAttribute('cy', y);
    now.textContent = rows[k].dataset.says;
  };
  for (const dial of dials) dial.addEventListener('input', turn);
  root.querySelectorAll('[hidden]').forEach(part => part.removeAttribute('hidden'));
  root.querySelector('details').open = false;
  root.dataset.ready = '';
  turn();
}
// Notebooks take arrow keys for commands before the focused slider sees them.
window.pzDials = window.pzDials || (event => {
  const dial = event.target.closest && event.target.closest('.pz-roofline input');
  if (dial && /^(Arrow|Home|End|Page)/.test(event.key)) event.stopImmediatePropagation();
});
window.addEventListener('keydown', window.pzDials, true);
})();
