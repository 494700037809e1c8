"""The style sheet of a walk: neutral marks in the page's own text colour, so any theme will do."""

from __future__ import annotations

from puzzles._palette import BLUE, GREEN, MARKS, SANS, SKY, VERMILLION

_RULES = """
.pz-walk{font:13px/1.45 __SANS__;color:inherit;max-width:1000px;margin:6px 0 18px;padding:2px}
.pz-walk *{box-sizing:border-box}
.pz-walk i{font-style:normal;opacity:.72}
.pz-walk.pz-walk.pz-walk code{font-size:.92em;background:none;color:inherit;padding:0;border:0}
.pz-walk b{font-weight:600;font-variant-numeric:tabular-nums}
.pz-head{font-size:15px}
.pz-head span{opacity:.8;font-size:13px}
.pz-walk ul.pz-faults{list-style:none;margin:0 0 10px;padding:0}
.pz-walk ul.pz-faults li{border-left:4px solid __VERMILLION__;padding:3px 0 3px 10px;margin:0 0 6px}
.pz-x{color:__VERMILLION__;font-weight:700}
.pz-walk button{font:inherit;color:inherit;background:none;border:1px solid;border-color:inherit;
border-radius:5px;padding:2px 7px;margin:0;cursor:pointer;line-height:1.3;opacity:.85}
.pz-walk button:hover{opacity:1;box-shadow:inset 0 0 0 1px currentColor}
.pz-walk button:focus-visible,.pz-walk summary:focus-visible,.pz-walk input:focus-visible{
outline:2px solid __BLUE__;outline-offset:2px}
.pz-bar{display:flex;flex-wrap:wrap;align-items:center;gap:6px 14px;margin-bottom:4px}
.pz-keys{display:inline-flex;gap:4px}
.pz-keys button svg{display:block;fill:none;stroke:currentColor;stroke-width:2;stroke-linecap:round;
stroke-linejoin:round}
.pz-walk button[data-do=play]{background:__BLUE__;border-color:__BLUE__;color:#fff;padding:2px 14px;
opacity:1}
.pz-keys button[data-do=play] svg{fill:currentColor}
.pz-step{min-width:9em}
.pz-id{white-space:nowrap}
.pz-strip{display:flex;margin:4px 0}
.pz-labels{flex:none;max-width:11em;padding-right:10px;text-align:right}
.pz-labels div{height:20px;line-height:20px;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap;font-size:12px}
.pz-time{flex:1;min-width:0;position:relative;margin-right:10px}
.pz-time>svg{display:block;width:100%;height:14px;margin:3px 0}
.pz-time>svg:not(:first-child){margin:6px 0 0}
.pz-slot{height:20px}
.pz-slot input{display:block;height:20px;margin:0 0 0 calc(50%/var(--n) - 8px);padding:0;
width:calc(100%*(var(--n) - 1)/var(--n) + 16px);cursor:pointer;appearance:none;
-webkit-appearance:none;background:none}
.pz-slot input::-webkit-slider-runnable-track{height:4px;border-radius:2px;background:#8888}
.pz-slot input::-moz-range-track{height:4px;border-radius:2px;background:#8888}
.pz-slot input::-webkit-slider-thumb{-webkit-appearance:none;width:16px;height:16px;margin-top:-6px;
border-radius:50%;background:__BLUE__;border:2px solid #fff;box-shadow:0 0 0 1px __BLUE__}
.pz-slot input::-moz-range-thumb{box-sizing:border-box;width:16px;height:16px;border-radius:50%;
background:__BLUE__;border:2px solid #fff;box-shadow:0 0 0 1px __BLUE__}
.pz-walk .pz-slot input:focus-visible{outline:none}
.pz-slot input:focus-visible::-webkit-slider-thumb{box-shadow:0 0 0 4px __SKY__}
.pz-slot input:focus-visible::-moz-range-thumb{box-shadow:0 0 0 4px __SKY__}
.pz-cursor{position:absolute;top:22px;bottom:-3px;border:1.5px solid;min-width:3px;
border-radius:3px;pointer-events:none}
.pz-bytes{display:flex;flex-wrap:wrap;gap:4px 24px;margin:10px 0 6px}
.pz-meter{flex:1 1 220px;max-width:420px;font-size:12px}
.pz-track{height:6px;border-radius:3px;overflow:hidden;position:relative;margin-top:2px}
.pz-track::before{content:"";position:absolute;inset:0;background:currentColor;opacity:.14}
.pz-full{position:relative;height:100%}
.pz-f-read{background:__BLUE__}
.pz-f-done{background:__GREEN__}
.pz-board{display:flex;flex-wrap:wrap;align-items:flex-start;gap:14px 12px;margin-top:14px}
.pz-panel{max-width:100%;min-width:130px}
.pz-panel:not([data-operand]){width:126px}
.pz-panel:not([data-operand]) .pz-state{font-size:11px}
.pz-panel svg{display:block;max-width:100%;cursor:pointer}
.pz-name{font-size:13px}
.pz-what{white-space:nowrap;font-size:11px;opacity:.78}
.pz-slice,.pz-sofar{font-size:11.5px;opacity:.78;max-width:34em}
.pz-where{margin-top:5px;font-variant-numeric:tabular-nums}
.pz-state{min-height:1.45em;max-width:24em}
.pz-dot{display:inline-block;width:11px;height:11px;margin-right:5px;border:2px solid;
vertical-align:-1px;border-radius:2px}
.pz-d-fetched{background:__BLUE__}
.pz-d-reused{background:__SKY__66}
.pz-d-written{background:__GREEN__}
.pz-d-held{background:__GREEN__5c}
.pz-d-fault{border-color:__VERMILLION__!important;background:__VERMILLION__;transform:rotate(45deg)}
.pz-any{width:110px;height:64px;margin:8px 0;border:1.5px dashed;border-radius:3px;opacity:.7}
.pz-panel svg.pz-scratch{margin-top:6px;cursor:default}
.pz-stack{display:flex;flex-direction:column;gap:12px}
.pz-body{display:flex;align-items:center;gap:6px;margin:100px 4px 0 0}
.pz-arrow{font-size:20px;opacity:.6}
.pz-core{border:2px solid;border-radius:8px;padding:8px 6px;text-align:center;width:92px;
position:relative}
.pz-core b,.pz-did{display:block}
.pz-did{font-size:12px}
.pz-core.pz-work::before{content:"";position:absolute;inset:0;background:currentColor;opacity:.14}
.pz-core.pz-skipped{border-style:dashed}
.pz-legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:11.5px;margin:10px 0 6px}
.pz-legend span{white-space:nowrap}
.pz-total{margin:0 0 8px;opacity:.85}
.pz-walk.pz-walk table{border-collapse:collapse;margin:4px 0;font-size:12px;color:inherit}
.pz-walk.pz-walk.pz-walk th,.pz-walk.pz-walk.pz-walk td{padding:2px 10px 2px 0;text-align:left;
background:none;border:0;color:inherit}
.pz-walk.pz-walk.pz-walk .pz-numbers td{border:1px solid;padding:1px 5px;text-align:right;
font-variant-numeric:tabular-nums;min-width:1.9em}
.pz-walk.pz-walk.pz-walk tr{background:none}
.pz-walk summary{cursor:pointer}
.pz-never{stroke:none!important}
.pz-lines{fill:none;stroke:currentColor;stroke-opacity:.45}
.pz-lost{stroke:__VERMILLION__;stroke-opacity:1}
.pz-twice.pz-m-fault{stroke:none}
.pz-over{fill:none}
.pz-s-skipped{fill:currentColor;fill-opacity:.3}
"""


def _style() -> str:
    rules = _RULES.strip().replace(",\n", ",").replace(";\n", ";").replace("{\n", "{")
    rules = rules.replace("__SANS__", SANS)
    for name, colour in (
        ("BLUE", BLUE),
        ("SKY", SKY),
        ("GREEN", GREEN),
        ("VERMILLION", VERMILLION),
    ):
        rules = rules.replace(f"__{name}__", colour)
    marks = [f".pz-m-{name}{{{mark.css()}}}" for name, mark in MARKS.items()]
    bars = [
        f".pz-s-{name}{{fill:{MARKS[name].fill};fill-opacity:{MARKS[name].opacity:g}}}"
        for name in ("fetched", "written", "read", "done", "work")
    ]
    return "\n".join([*marks, *bars, f".pz-s-fault{{fill:{VERMILLION}}}", rules])


STYLE = _style()
