#pragma once

// The page's style and script, in the page itself: it must work without a network.

namespace millrace::report {

inline constexpr const char* style = R"css(
:root{color-scheme:light dark;--page:#f6f6f3;--card:#fff;--ink:#14161a;--soft:#5c626b;--faint:#8d939c;
--rule:#e7e7e2;--edge:#e3e3dd;--c1:#2a6fdb;--c2:#d9622b;--c3:#1a9b7c;--c4:#8b5cd6;--good:#137a50;
--good-bg:#e2f3ea;--bad:#b3261e;--bad-bg:#fbe6e4}
@media(prefers-color-scheme:dark){:root{--page:#101214;--card:#181b1f;--ink:#eceef1;--soft:#a3a9b2;
--faint:#757c86;--rule:#262a30;--edge:#262a30;--c1:#6aa5ff;--c2:#ff9259;--c3:#45c9a5;--c4:#b893ff;
--good:#5fd3a0;--good-bg:#143024;--bad:#ff8a80;--bad-bg:#3a1a18}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 Inter,system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased}
main{max-width:1240px;margin:0 auto;padding:44px 28px 64px}
header h1{margin:0;font-size:30px;line-height:1.15;letter-spacing:-.02em;font-weight:650}
header p{margin:8px 0 0;color:var(--soft);max-width:76ch}
.badge{display:inline-block;vertical-align:5px;margin-left:12px;padding:2px 10px;border-radius:99px;
font-size:12.5px;font-weight:600;letter-spacing:0;background:var(--good-bg);color:var(--good)}
.badge.bad{background:var(--bad-bg);color:var(--bad)}
.tiles{display:flex;flex-wrap:wrap;gap:14px;margin:28px 0 8px}
.tile,figure,.panel{background:var(--card);border:1px solid var(--edge);border-radius:12px}
.tile{flex:1 1 120px;padding:14px 16px 13px}
.tile.wide{flex:1.5 1 190px}
.tile span{display:block;color:var(--soft);font-size:13px}
.tile strong{display:block;font-size:23px;line-height:1.4;font-weight:640;letter-spacing:-.02em;
font-variant-numeric:tabular-nums;white-space:nowrap}
.tile strong small{font-size:.72em;font-weight:500;color:var(--faint);letter-spacing:0}
.tile em{display:block;font-style:normal;color:var(--faint);font-size:12.5px}
h2{margin:38px 0 14px;font-size:18px;letter-spacing:-.01em;font-weight:640}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:16px}
figure{margin:0;padding:18px 18px 10px;position:relative;min-width:0;display:flex;flex-direction:column}
figcaption h3{margin:0;font-size:15px;font-weight:620;letter-spacing:-.005em}
figcaption p{margin:1px 0 0;color:var(--faint);font-size:13px;line-height:1.4}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:8px 0 2px;font-size:13px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px}
.legend b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;margin-top:auto;overflow:visible;touch-action:pan-y}
.grid svg text,.tick{font-size:11.5px;fill:var(--faint);font-variant-numeric:tabular-nums}
.tick.strong{fill:var(--soft);font-weight:600}
.rule{stroke:var(--rule);stroke-width:1;fill:none}
.reference{stroke:var(--faint);stroke-width:1.25;stroke-dasharray:3 4;fill:none}
.line{stroke:var(--c);stroke-width:2;fill:none;stroke-linejoin:round;stroke-linecap:round}
.line.faint{opacity:.26;stroke-width:1.25}.line.thin{stroke-width:1.5;opacity:.65}
.band{fill:var(--c);opacity:.1;stroke:none}
.dot{fill:var(--c);stroke:var(--card);stroke-width:2}
.bar{fill:var(--c1)}.bar.bad{fill:var(--bad)}
.cross{stroke:var(--faint);stroke-width:1;fill:none;pointer-events:none}
.tip{position:absolute;pointer-events:none;background:var(--card);border:1px solid var(--edge);
border-radius:8px;padding:7px 11px;font-size:12.5px;line-height:1.55;white-space:nowrap;
box-shadow:0 6px 22px rgba(0,0,0,.14);z-index:2;font-variant-numeric:tabular-nums}
.tip i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px}
.tip b{font-weight:600}
.panel{padding:18px 20px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
td{padding:6px 0;border-top:1px solid var(--rule)}tr:first-child td{border-top:0}
td:last-child{text-align:right;font-weight:600}td span{color:var(--faint);font-weight:400}
.why td{padding:2px 0;border-top:0;color:var(--soft);font-weight:400}.why td:first-child{padding-left:22px}
details summary{cursor:pointer;font-weight:600}
pre{overflow:auto;max-height:520px;margin:14px 0 0;font:12.5px/1.55 ui-monospace,"SF Mono",Menlo,
Consolas,monospace;color:var(--soft)}
@media(max-width:560px){main{padding:28px 14px 48px}.grid svg text{font-size:17px}figure{padding:14px 12px 10px}}
footer{margin-top:34px;color:var(--faint);font-size:13px}
@media print{body{background:#fff}.tile,figure,.panel{break-inside:avoid}}
)css";

inline constexpr const char* script = R"js(
const L=48,R=14,W=600,T=12,B=26,H=230;
const num=(v,s)=>s==='percent'?(v*100).toFixed(Math.abs(v)<.1?2:1)+'%':
  s==='seconds'?(v<1e-3?(v*1e6).toFixed(0)+' µs':v<1?(v*1e3).toFixed(v<.01?1:0)+' ms':v.toFixed(1)+' s'):
  Math.abs(v)>=1e4?(v/1e3).toFixed(1)+'k':String(+v.toPrecision(4));
for(const f of document.querySelectorAll('figure[data-chart]')){
  const d=JSON.parse(f.dataset.chart),svg=f.querySelector('svg'),cross=f.querySelector('.cross');
  const tip=document.createElement('div');tip.className='tip';tip.hidden=true;f.append(tip);
  const hide=()=>{tip.hidden=true;cross.setAttribute('d','')};
  svg.addEventListener('pointerleave',hide);
  svg.addEventListener('pointermove',e=>{
    const r=svg.getBoundingClientRect(),px=(e.clientX-r.left)/r.width*W,[a,b]=d.x;
    const want=a+(Math.min(Math.max(px,L),W-R)-L)/(W-L-R)*(b-a);
    let at=null;
    for(const s of d.series)for(const p of s.p)if(at===null||Math.abs(p[0]-want)<Math.abs(at-want))at=p[0];
    if(at===null)return hide();
    const x=b===a?(L+W-R)/2:L+(at-a)/(b-a)*(W-L-R);
    cross.setAttribute('d',`M${x} ${T}V${H-B}`);
    tip.textContent='';
    const h=document.createElement('b');h.textContent='step '+Math.round(at);tip.append(h);
    for(const s of d.series){
      const p=s.p.find(q=>q[0]===at);if(!p)continue;
      const row=document.createElement('div'),i=document.createElement('i');
      i.style.background=`var(--c${s.c})`;row.append(i,s.name+'  '+num(p[1],d.style));tip.append(row)}
    tip.hidden=false;
    const fr=f.getBoundingClientRect(),cx=r.left-fr.left+x/W*r.width;
    const left=cx+14+tip.offsetWidth>fr.width?cx-14-tip.offsetWidth:cx+14;
    tip.style.left=left+'px';tip.style.top=(r.top-fr.top+T)+'px'})}
)js";

} // namespace millrace::report
