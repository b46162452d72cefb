/*
 * The page of "ratelimit_console".  It polls APIs of its own origin and shows
 * what they answer.  Names and keys are data of others: they reach the page as
 * text nodes only, never as markup.
 *
 * The parts, in this order: elements, numbers and times, keys in paths, the
 * API, machines, charts, a view for each section of the page, and polling.  A
 * view keeps its elements and changes their text, so that focus and selection
 * stay where they are.
 */

'use strict';

(function () {


const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HISTORY = 5 * MINUTE;         /* what a chart shows */
const GAP = 6 * SECOND;             /* samples further apart are not joined */
const TIMEOUT = 8 * SECOND;         /* of one request */
const SLOWEST = 30 * SECOND;        /* between polls of an API that fails */
const SVG = 'http://www.w3.org/2000/svg';

const config = { api: '', machines: [] };
const about = { version: '', write: false, overrides: 'off' };

let here = null;                    /* this machine */
let machines = [];                  /* this one and the others */


/* ---- elements */

function $(id) {
    return document.getElementById(id);
}


/* attributes are set by name; children are nodes or text */

function make(tag, attributes, ...children) {
    const node = /^(svg|path|line|g)$/.test(tag)
                 ? document.createElementNS(SVG, tag)
                 : document.createElement(tag);

    for (const name in attributes || {}) {
        const value = attributes[name];

        if (typeof value === 'function') {
            node.addEventListener(name, value);

        } else if (value === true) {
            node.setAttribute(name, '');

        } else if (value !== null && value !== undefined && value !== false) {
            node.setAttribute(name, value);
        }
    }

    node.append(...children.filter((child) => child !== null));

    return node;
}


function say(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}


function mark(node, name, value) {
    if (node.getAttribute(name) !== value) {
        node.setAttribute(name, value);
    }
}


function show(node, shown) {
    if (node.hidden === shown) {
        node.hidden = !shown;
    }
}


function note(node, ...children) {
    node.replaceChildren(make('p', { class: 'note' }, ...children));
}


/*
 * A list of views, one for each item: views of new items are made, those of
 * items that have left are removed, the others are updated in their place.
 */

function list(parent, create, id, first) {
    const views = new Map();

    return function (items) {
        const seen = new Set();

        items.forEach((item, i) => {
            const name = id(item);
            let view = views.get(name);

            if (!view) {
                view = create(item);
                views.set(name, view);
            }

            seen.add(name);
            view.update(item);

            const at = parent.children[(first || 0) + i] || null;

            if (at !== view.node) {
                parent.insertBefore(view.node, at);
            }
        });

        for (const [name, view] of views) {
            if (!seen.has(name)) {
                view.node.remove();
                views.delete(name);
            }
        }
    };
}


/* a table with these columns: [title, class, explanation] */

function table(columns, label) {
    return make('table', { 'aria-label': label },
                make('thead', null, make('tr', null,
                    ...columns.map(([title, kind, title2]) =>
                        make('th', { scope: 'col', class: kind,
                                     title: title2 }, title)))));
}


/* ---- numbers and times */

function amount(n) {
    if (n === null || n === undefined) {
        return '\u2013';
    }

    if (n >= 9.95e6) {
        return (n / 1e6).toFixed(0) + 'M';
    }

    if (n >= 999500) {
        return (n / 1e6).toFixed(1) + 'M';
    }

    if (n >= 99950) {
        return (n / 1e3).toFixed(0) + 'k';
    }

    if (n >= 9999.5) {
        return (n / 1e3).toFixed(1) + 'k';
    }

    if (n >= 99.95) {
        return n.toFixed(0).replace(/\B(?=(\d{3})+$)/g, '\u2009');
    }

    return n === 0 ? '0' : n < 0.05 ? '<0.1' : n.toFixed(1);
}


function whole(n) {
    return n === null || n === undefined ? '\u2013'
           : String(n).replace(/\B(?=(\d{3})+$)/g, '\u2009');
}


function percent(share) {
    const p = share * 100;

    return (p === 0 ? '0' : p >= 10 ? p.toFixed(0)
            : p >= 0.095 ? p.toFixed(1) : p >= 0.0095 ? p.toFixed(2) : '<0.01')
           + '\u2009%';
}


function latency(seconds) {
    if (seconds === null || seconds === undefined) {
        return '\u2013';
    }

    return seconds < 0.001 ? Math.round(seconds * 1e6) + '\u2009\u00b5s'
           : seconds < 1 ? +(seconds * 1e3).toPrecision(3) + '\u2009ms'
           : +seconds.toPrecision(3) + '\u2009s';
}


function span(seconds) {
    const s = Math.max(0, Math.round(seconds));

    return s < 90 ? s + ' s'
           : s < 90 * 60 ? Math.round(s / 60) + ' min'
           : s < 36 * 3600 ? Math.round(s / 3600) + ' h'
           : Math.round(s / 86400) + ' days';
}


/* epoch seconds by the clock of the machine that was asked */

function now() {
    return (Date.now() + (here ? here.ahead : 0)) / 1000;
}


function moment(epoch) {
    return new Date(epoch * 1000).toLocaleString(undefined, {
        dateStyle: 'medium', timeStyle: 'medium'
    });
}


/* ---- keys and names in paths */

/*
 * The API shows a byte that is not printable ASCII as %HH, and "%" as well.  So
 * what it shows is encoded already, except for characters that have a meaning
 * in a path.  The same holds for what a person types: a "%" that is not the
 * beginning of %HH stands for itself.
 */

function segment(shown) {
    const text = shown.replace(/%[0-9A-Fa-f]{2}|[^]/gu,
        (c) => c.length === 3 && c[0] === '%' ? c : encodeURIComponent(c));

    /* a browser would take them for "here" and "one up" */

    if (/^(\.|%2e){1,2}$/i.test(text)) {
        throw new Error('a browser cannot ask for a key that consists of dots');
    }

    return text;
}


/* digests that are cut short do not name a key */

function isDigest(key) {
    return /^sha1:[0-9a-f]{1,39}$/.test(key);
}


/* ---- the API */

/*
 * Fails with an Error whose message can be shown.  Writing needs a header that
 * no other site can send along.
 */

async function ask(api, path, method, body) {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), TIMEOUT);
    const headers = { Accept: 'application/json' };

    if (method) {
        headers['X-RateLimit-Write'] = '1';
    }

    if (body) {
        headers['Content-Type'] = 'application/json';
    }

    try {
        const response = await fetch(api + path, {
            method: method || 'GET',
            headers: headers,
            body: body ? JSON.stringify(body) : undefined,
            cache: 'no-store',
            redirect: 'error',
            signal: abort.signal
        });

        let answer = null;

        try {
            answer = await response.json();

        } catch (error) {
            if (response.ok) {
                throw new Error(api + ' does not answer with JSON');
            }
        }

        if (!response.ok) {
            const failed = new Error((answer && answer.detail)
                                     || 'status ' + response.status + ' from '
                                        + api);
            failed.status = response.status;
            throw failed;
        }

        return [answer, Date.parse(response.headers.get('Date') || '')];

    } catch (error) {
        if (error.name === 'AbortError') {
            throw new Error(api + ' did not answer within '
                            + TIMEOUT / SECOND + ' s');
        }

        if (error instanceof TypeError) {
            throw new Error(api + ' cannot be reached');
        }

        throw error;

    } finally {
        clearTimeout(timer);
    }
}


async function get(path) {
    return (await ask(config.api, path))[0];
}


async function write(method, path, body) {
    return (await ask(config.api, path, method, body))[0];
}


/* ---- machines: what an API said last, and the samples of the charts */

class Machine {

    constructor(name, api) {
        this.name = name;
        this.api = api;
        this.limits = null;         /* null: not known yet */
        this.servers = [];
        this.samples = new Map();   /* by the name of a limit */
        this.calls = new Map();     /* by the name of a server */
        this.ahead = 0;             /* its clock before ours, ms */
        this.error = null;
        this.failures = 0;
        this.next = 0;              /* when to ask again */
        this.asking = false;
    }


    async poll() {
        this.asking = true;

        try {
            const [[limits, date], [servers]] = await Promise.all([
                ask(this.api, 'limits'), ask(this.api, 'servers')
            ]);
            const at = Date.now();

            if (date) {

                /* a date has whole seconds: believe it if it is far off */

                const ahead = date + 500 - at;
                this.ahead = Math.abs(ahead) > 2 * SECOND ? ahead : 0;
            }

            this.sample(limits.limits, at);
            this.limits = limits.limits;
            this.count(servers.servers, at);
            this.servers = servers.servers;
            this.error = null;
            this.failures = 0;
            this.next = at + SECOND;

        } catch (error) {
            this.error = error;
            this.failures++;
            this.next = Date.now()
                        + Math.min(SLOWEST, SECOND * 2 ** (this.failures - 1));
        }

        this.asking = false;
    }


    sample(limits, at) {
        for (const limit of limits) {
            const before = this.samples.get(limit.name) || [];
            const rate = limit.rates && limit.rates['1s'];

            if (rate) {
                before.push({ at: at, passed: rate.passed,
                              rejected: rate.rejected,
                              degraded: rate.degraded });
            }

            while (before.length && before[0].at < at - HISTORY - GAP) {
                before.shift();
            }

            this.samples.set(limit.name, before);
        }
    }


    /* calls per second, from two answers */

    count(servers, at) {
        for (const server of servers) {
            const before = this.calls.get(server.name);

            this.calls.set(server.name, {
                at: at, calls: server.calls,
                rate: before && server.calls >= before.calls
                      ? (server.calls - before.calls) * SECOND
                        / Math.max(1, at - before.at) : null
            });
        }
    }


    /* the rates of a limit, or null */

    rates(name) {
        const limit = (this.limits || []).find((l) => l.name === name);
        const rates = limit && limit.rates;

        return rates ? rates['10s'] || rates['1s'] : null;
    }
}


/* ---- charts */

/*
 * Samples as stacked areas, passed below rejected, and a line for those that
 * were decided without Redis.  A chart begins with one minute, and shows more
 * as there is more to show.
 */

class Chart {

    constructor(width, height, label) {
        this.width = width;
        this.height = height;
        this.paths = {};
        this.node = make('svg', { viewBox: '0 0 ' + width + ' ' + height,
                                  preserveAspectRatio: 'none', class: 'chart',
                                  role: 'img', 'aria-label': label });

        for (const name of ['passed', 'line', 'rejected', 'degraded']) {
            this.paths[name] = make('path', { class: 'c-' + name });
            this.node.append(this.paths[name]);
        }
    }


    draw(samples) {
        const to = Date.now();
        const first = samples.length ? samples[0].at : to;
        const from = Math.max(to - HISTORY, Math.min(first, to - MINUTE));
        const runs = [];
        let most = 0, last = null;

        for (const s of samples) {
            if (s.at < from - GAP) {
                continue;
            }

            most = Math.max(most, s.passed + s.rejected, s.degraded);

            if (last === null || s.at - last > GAP) {
                runs.push([]);
            }

            runs[runs.length - 1].push(s);
            last = s.at;
        }

        const top = most || 1;
        const x = (s) => ((s.at - from) / (to - from) * this.width).toFixed(1);
        const y = (v) => (this.height - 1
                          - v / top * (this.height - 3)).toFixed(1);
        const line = (run, value, drawn) => run.map((s, i) =>
            drawn && !drawn(i) ? ''
            : (i === 0 || drawn && !drawn(i - 1) ? 'M' : 'L')
              + x(s) + ' ' + y(value(s))).join('');
        const area = (low, high) => runs.map((run) =>
            line(run, high) + line([...run].reverse(), low).replace('M', 'L')
            + 'Z'
        ).join('');

        const passed = (s) => s.passed;
        const both = (s) => s.passed + s.rejected;

        mark(this.paths.passed, 'd', area(() => 0, passed));
        mark(this.paths.rejected, 'd', area(passed, both));
        mark(this.paths.degraded, 'd', runs.map((run) =>
            line(run, (s) => s.degraded, (i) => [i - 1, i, i + 1].some((k) =>
                run[k] && run[k].degraded > 0))).join(''));
        mark(this.paths.line, 'd', runs.map((run) =>
            line(run, passed)).join(''));

        this.most = most;
        this.span = (to - from) / SECOND;
    }
}


/* ---- limits */

const ALGORITHMS = {
    token_bucket: 'token bucket', sliding_window_log: 'sliding window',
    gcra: 'GCRA'
};

const ON_ERROR = {
    local: 'this machine\u2019s share', open: 'pass', closed: 'reject'
};


/* what the limit allows, in a few words */

function definition(limit) {
    const parts = [];

    if (limit.algorithm === 'sliding_window_log') {
        parts.push((limit.capacity || limit.rate) + ' in '
                   + (limit.window || '60s'));

    } else {
        parts.push(limit.capacity ? limit.capacity + ' at once' : null,
                   limit.rate);
    }

    parts.push(limit.refill_interval
               ? 'refilled each ' + limit.refill_interval : null,
               limit.cost ? 'cost ' + limit.cost : null,
               ALGORITHMS[limit.algorithm] || limit.algorithm);

    return parts.filter((part) => part).join(', ');
}


class LimitView {

    constructor(limit) {
        const id = 'limit-' + LimitView.count++;

        this.chart = new Chart(240, 34, 'requests of the last minutes');
        this.toggle = make('button', {
            type: 'button', class: 'open', 'aria-expanded': 'false',
            'aria-controls': id, click: () => this.expand()
        }, make('span', { class: 'name' }, limit.name));
        this.words = make('span', { class: 'words' });
        this.key = make('code', { class: 'dim' });
        this.badges = make('span', { class: 'badges' });
        this.passed = make('td', { class: 'num', 'data-label': 'passed' });
        this.rejected = make('td', { class: 'num', 'data-label': 'rejected' });
        this.share = make('td', { class: 'num dim', 'data-label': 'share' });
        this.degraded = make('td', { class: 'num',
                                     'data-label': 'without Redis' });
        this.cell = make('td', { colspan: '6' });
        this.detail = make('tr', { class: 'detail', id: id, hidden: true },
                           this.cell);
        this.node = make('tbody', null,
            make('tr', { class: 'limit' },
                 make('th', { scope: 'row' }, this.toggle, this.badges,
                      make('div', { class: 'sub' }, this.words, ' ',
                           this.key)),
                 make('td', { class: 'spark' }, this.chart.node),
                 this.passed, this.rejected, this.share, this.degraded),
            this.detail);
    }


    expand() {
        const open = this.detail.hidden;

        this.detail.hidden = !open;
        this.toggle.setAttribute('aria-expanded', String(open));

        if (open && !this.parts) {
            this.parts = new LimitDetail();
            this.cell.append(this.parts.node);
        }

        this.update(this.limit);
    }


    update(limit) {
        const rates = here.rates(limit.name);
        const all = rates ? rates.passed + rates.rejected : 0;

        this.limit = limit;

        say(this.words, definition(limit));
        say(this.key, 'by ' + limit.key);
        this.badge(limit);

        say(this.passed, amount(rates && rates.passed));
        say(this.rejected, amount(rates && rates.rejected));
        say(this.share, all > 0 && rates.rejected > 0
                        ? percent(rates.rejected / all) : '');
        say(this.degraded, amount(rates && rates.degraded));
        mark(this.rejected, 'class',
             rates && rates.rejected > 0 ? 'num t-rejected' : 'num dim');
        mark(this.degraded, 'class',
             rates && rates.degraded > 0 ? 'num t-degraded' : 'num dim');

        this.chart.draw(here.samples.get(limit.name) || []);

        if (!this.detail.hidden) {
            this.parts.update(limit);
        }
    }


    badge(limit) {
        const words = [];

        if (limit.dry_run || limit.used.some((use) => use.mode === 'dry_run')) {
            words.push('dry run');
        }

        if (limit.used.length === 0) {
            words.push('not used');
        }

        if (limit.overrides) {
            words.push(limit.overrides === 1 ? '1 override'
                       : limit.overrides + ' overrides');
        }

        const text = words.join('|');

        if (this.shown !== text) {
            this.shown = text;
            this.badges.replaceChildren(...words.map((word) =>
                make('span', { class: 'badge' }, word)));
        }
    }
}

LimitView.count = 0;


/* what a limit shows when it is opened */

class LimitDetail {

    constructor() {
        this.chart = new Chart(960, 120, 'requests of the last minutes');
        this.most = make('span');
        this.from = make('span');
        this.used = make('div');
        this.facts = make('dl', { class: 'facts' });
        this.node = make('div', { class: 'opened' },
            make('div', { class: 'big' },
                 this.most, this.chart.node,
                 make('div', { class: 'axis dim' },
                      this.from,
                      make('span', null, 'now'))),
            make('div', { class: 'split' },
                 make('div', null, make('h3', null, 'Where it is used'),
                      this.used),
                 make('div', null, make('h3', null, 'Since nginx started'),
                      this.facts)));
    }


    update(limit) {
        this.chart.draw(here.samples.get(limit.name) || []);

        say(this.most, 'up to ' + amount(this.chart.most) + ' a second');
        say(this.from, span(this.chart.span) + ' ago');
        this.where(limit);
        this.sums(limit);
    }


    where(limit) {
        const text = JSON.stringify(limit.used);

        if (this.text === text) {
            return;
        }

        this.text = text;

        if (limit.used.length === 0) {
            note(this.used, 'No location uses this limit: ',
                 make('code', null, 'ratelimit ' + limit.name + ';'));
            return;
        }

        const rows = make('tbody', null, ...limit.used.map((use) =>
            make('tr', null,
                 make('td', null, make('code', null, use.server
                                       + (use.location || ''))),
                 make('td', null, use.mode.replace('_', ' ')),
                 make('td', null, use.phase),
                 make('td', null, use.state === 'memory'
                                  ? 'memory of this machine'
                                  : ON_ERROR[use.on_error] || use.on_error))));
        const node = table([['Server and location'], ['Mode'], ['Phase'],
                            ['Without Redis', null,
                             'what ratelimit_on_error says']], 'Where '
                           + limit.name + ' is used');

        node.append(rows);
        this.used.replaceChildren(node);
    }


    sums(limit) {
        const facts = [];

        for (const name in limit.requests) {
            facts.push([name.replace(/_/g, ' '), limit.requests[name]]);
        }

        for (const name in limit.sources) {
            facts.push(['decided by ' + name.replace(/_/g, ' '),
                        limit.sources[name]]);
        }

        facts.push(['tokens', limit.tokens], ['near the limit',
                   limit.near_limit], ['invalid values', limit.invalid_values]);

        const text = JSON.stringify(facts);

        if (this.sum !== text) {
            this.sum = text;
            this.facts.replaceChildren(...facts.map(([name, n]) =>
                make('div', null, make('dt', null, name),
                     make('dd', null, whole(n)))));
        }
    }
}


const limitsView = {

    update() {
        if (!this.table) {
            this.table = table([
                ['Limit', 'wide'], ['Last minutes', 'spark'],
                ['Passed', 'num'], ['Rejected', 'num'],
                ['Share', 'num', 'rejected, of all'],
                ['Without Redis', 'num',
                 'decided without Redis, since it did not answer']
            ], 'Limits');
            this.table.className = 'limits';
            this.list = list(this.table, (limit) => new LimitView(limit),
                             (limit) => limit.name, 1);
        }

        if (here.limits.length === 0) {
            note($('limits'), 'This configuration has no limits.');
            return;
        }

        if (!this.table.isConnected) {
            $('limits').replaceChildren(this.table);
        }

        this.list(here.limits);
    }
};


/* ---- servers */

const STATES = {
    distributed: ['ok', 'answers'],
    fallback: ['warn', 'last call failed'],
    circuit_open: ['bad', 'unavailable']
};


class ServerView {

    constructor() {
        this.dot = make('i', { class: 'dot' });
        this.name = make('code');
        this.address = make('span', { class: 'dim' });
        this.cells = {};

        for (const [name, kind, label] of [
            ['role', '', 'role'], ['state', '', 'breaker'],
            ['p50', 'num', 'p50'], ['p95', 'num', 'p95'],
            ['p99', 'num', 'p99'], ['calls', 'num', 'calls/s'],
            ['flight', 'num', 'in flight'],
            ['connections', 'num', 'connections'],
            ['failure', '', 'last failure'], ['failures', 'num', 'failures']
        ]) {
            this.cells[name] = make('td', { class: kind,
                                            'data-label': label });
        }

        this.node = make('tr', null,
            make('th', { scope: 'row' }, this.dot, this.name, ' ',
                 this.address),
            ...Object.values(this.cells));
    }


    update(server) {
        const [kind, words] = STATES[server.breaker] || ['none', '\u2013'];
        const cells = this.cells;
        const quantiles = server.latency || {};
        const calls = here.calls.get(server.name);
        let sum = 0;

        for (const name in server.failures || {}) {
            sum += server.failures[name];
        }

        mark(this.dot, 'class', 'dot d-' + kind);
        say(this.name, server.name);
        say(this.address, server.address && server.address !== server.name
                          ? server.address : '');
        say(cells.role, server.role);
        say(cells.state, words);
        mark(cells.state, 'class', 't-' + kind);
        say(cells.p50, latency(quantiles.p50));
        say(cells.p95, latency(quantiles.p95));
        say(cells.p99, latency(quantiles.p99));
        say(cells.calls, amount(calls && calls.rate));
        say(cells.flight, whole(server.calls_in_flight));
        say(cells.connections, whole(server.connections));
        say(cells.failure, (server.last_failure || '').replace(/_/g, ' '));
        say(cells.failures, server.failures ? whole(sum) : '\u2013');
    }
}


const serversView = {

    update() {
        if (here.servers.length === 0) {
            note($('servers'), 'This configuration uses no Redis: limits are '
                               + 'kept in the memory of this machine.');
            return;
        }

        if (!this.table) {
            this.body = make('tbody');
            this.table = table([
                ['Server', 'wide'], ['Role'], ['Breaker'], ['p50', 'num'],
                ['p95', 'num'], ['p99', 'num'], ['Calls/s', 'num'],
                ['In flight', 'num'], ['Connections', 'num'],
                ['Last failure'], ['Failures', 'num']
            ], 'Redis servers');
            this.table.className = 'servers';
            this.table.append(this.body);
            this.list = list(this.body, () => new ServerView(),
                             (server) => server.role + ' ' + server.name);
        }

        if (!this.table.isConnected) {
            $('servers').replaceChildren(this.table);
        }

        this.list(here.servers);
    }
};


/* ---- an outage, in words */

const CONSEQUENCES = {
    local: 'get this machine\u2019s share of the limit',
    open: 'pass without a limit',
    closed: 'are rejected'
};


/*
 * What it means for keys, by "ratelimit_on_error" of the places where limits
 * are enforced.  The most frequent one comes last, as "elsewhere".
 */

function consequence(limits) {
    const places = new Map();

    for (const limit of limits) {
        for (const use of limit.used) {
            if (use.state === 'redis' && use.mode === 'enforced'
                && CONSEQUENCES[use.on_error])
            {
                places.set(use.on_error, (places.get(use.on_error)
                                          || new Set())
                           .add(use.server + (use.location || '')));
            }
        }
    }

    const kinds = [...places].sort((a, b) => a[1].size - b[1].size);

    if (kinds.length === 0) {
        return 'no enforced limit depends on it';
    }

    return 'its keys ' + kinds.map(([kind, names], i) =>
        CONSEQUENCES[kind] + (kinds.length === 1 ? ''
                              : i === kinds.length - 1 ? ' elsewhere'
                              : ' in ' + some([...names]))).join(', and ');
}


function some(names) {
    return names.length <= 3 ? names.join(', ')
           : names.slice(0, 2).join(', ') + ' and ' + (names.length - 2)
             + ' more';
}


const outageView = {

    said: '',


    /* [what is said aloud, the rest of the line], of all machines */

    lines() {
        const lines = [];
        const servers = new Map();

        for (const machine of machines) {
            if (machine.error) {
                if (machine !== here || machine.failures > 1) {
                    lines.push([(machines.length > 1 ? machine.name + ': '
                                                     : '')
                                + 'no data, ' + machine.error.message, '.']);
                }

                continue;
            }

            for (const server of machine.servers) {
                if (server.breaker === 'circuit_open') {
                    servers.set(server.name,
                                [...servers.get(server.name) || [],
                                 [machine, server]]);
                }
            }
        }

        for (const [name, seen] of servers) {
            lines.unshift(this.line(name, seen));
        }

        return lines;
    },


    line(name, seen) {
        const [machine, server] = seen[0];
        const since = Math.min(...seen.map(([, s]) => s.since || Infinity));
        const where = machines.length === 1 ? ''
            : seen.length === machines.length ? ' on all machines'
            : ' on ' + seen.map(([m]) => m.name).join(', ');

        return ['Redis ' + name + (since < Infinity ? ' has been' : ' is')
                + ' unavailable' + where,
                (since < Infinity ? ' for ' + span(now() - since) : '')
                + (server.last_failure
                   ? ' (' + server.last_failure.replace(/_/g, ' ') + ')' : '')
                + ': ' + consequence(machine.limits) + '.'];
    },


    update() {
        const lines = this.lines();
        const bad = here.failures > 1
                    || lines.some((line) => line[0].startsWith('Redis '));
        const node = $('outage');

        this.list = this.list || list(node, () => {
            const p = make('p');

            return { node: p, update: (line) => say(p, line.join('')) };
        }, (line) => line[0]);
        this.list(lines);

        show(node, lines.length > 0);
        mark(node, 'data-kind', bad ? 'bad' : 'warn');
        document.title = (bad ? '(!) ' : '') + 'Rate limits';

        /* times change each second: only what is new is said */

        const text = lines.map((line) => line[0]).join('. ');

        if (text !== this.said) {
            say($('said'), text || 'All Redis servers answer again.');
            this.said = text;
        }
    }
};


/* ---- this page */

function liveUpdate() {
    const node = $('live');
    const wait = Math.round((here.next - Date.now()) / SECOND);

    mark(node, 'data-state', here.error ? 'bad' : 'ok');
    say(node.lastElementChild, !here.error ? 'live'
        : here.asking || wait < 1 ? 'asking again'
        : 'asking again in ' + wait + ' s');
}


async function aboutUpdate() {
    const index = await get('');

    about.version = index.version;
    about.write = index.write === true;
    about.overrides = index.overrides || 'off';

    say($('about'), [index.version, 'nginx ' + index.nginx,
                     about.write ? 'read and write' : 'read only']
                    .join(' \u00b7 '));
    foundView.access();
    overridesView.access();
}


/* ---- machines, side by side */

const machinesView = {

    update() {
        if (machines.length < 2) {
            return;
        }

        const names = (get) => [...new Set(machines.flatMap((machine) =>
            (get(machine) || []).map((thing) => thing.name)))];
        const limits = names((machine) => machine.limits);
        const servers = names((machine) => machine.servers.filter((server) =>
            server.breaker));
        const text = JSON.stringify([limits, servers]);

        if (this.text !== text) {
            this.text = text;
            this.build(limits, servers);
        }

        this.cells.forEach((update) => update());
        show($('machines-card'), true);
    },


    build(limits, servers) {
        const rows = [];

        this.cells = [];

        for (const name of limits) {
            rows.push(make('tr', null,
                make('th', { scope: 'row' }, name),
                ...machines.map((machine) => this.rate(name, [machine])),
                this.rate(name, machines)));
        }

        if (servers.length) {
            rows.push(make('tr', { class: 'group' },
                make('th', { scope: 'rowgroup', colspan: machines.length + 2 },
                     'Redis servers, latency p95')));
        }

        for (const name of servers) {
            rows.push(make('tr', null,
                make('th', { scope: 'row' }, make('code', null, name)),
                ...machines.map((machine) => this.server(name, machine)),
                make('td')));
        }

        const node = table([['', 'wide'],
                            ...machines.map((machine) => [machine.name, 'num']),
                            ['all', 'num']], 'Machines');

        node.className = 'machines';
        node.append(make('tbody', null, ...rows));
        $('machines').replaceChildren(node);
    },


    rate(name, of) {
        const passed = make('span');
        const rejected = make('span');

        this.cells.push(() => {
            const rates = of.filter((machine) => !machine.error)
                            .map((machine) => machine.rates(name))
                            .filter((rate) => rate);
            const sum = (field) => rates.length === 0 ? null
                : rates.reduce((n, rate) => n + rate[field], 0);

            say(passed, amount(sum('passed')));
            say(rejected, rates.length ? amount(sum('rejected')) : '');
            mark(rejected, 'class', sum('rejected') > 0 ? 't-rejected' : 'dim');
        });

        return make('td', { class: 'num two' }, passed, rejected);
    },


    server(name, machine) {
        const dot = make('i', { class: 'dot' });
        const words = make('span');

        this.cells.push(() => {
            const server = machine.error ? null
                : machine.servers.find((s) => s.name === name);
            const [kind, state] = server && STATES[server.breaker]
                                  || ['none', '\u2013'];

            mark(dot, 'class', 'dot d-' + kind);
            say(words, kind === 'ok' ? latency(server.latency.p95) : state);
            mark(words, 'class', kind === 'ok' ? '' : 't-' + kind);
        });

        return make('td', { class: 'num' }, dot, words);
    }
};


/* ---- top keys */

const topView = {

    async update() {
        const limits = (here.limits || []).filter((limit) => limit.top);

        show($('top-form'), limits.length > 0);

        if (limits.length === 0) {
            note($('top'), 'Off. ', make('code', null, 'ratelimit_top 100;'),
                 ' counts which keys are rejected and seen most often.');
            return;
        }

        const select = $('top-limit');
        const names = limits.map((limit) => limit.name);

        if (names.join() !== [...select.options].map((o) => o.value).join()) {
            const chosen = select.value;

            select.replaceChildren(...names.map((name) =>
                make('option', { value: name, selected: name === chosen },
                     name)));
        }

        const asked = [select.value, $('top-by').value];

        try {
            const top = await get('top?limit=' + encodeURIComponent(asked[0])
                                  + '&by=' + asked[1] + '&n=10');

            if (asked.join() === [select.value, $('top-by').value].join()) {
                this.draw(top);
            }

        } catch (error) {
            note($('top'), error.message);
            this.rows = null;
        }
    },


    draw(top) {
        if (top.keys.length === 0) {
            note($('top'), top.by === 'rejected'
                           ? 'No key was rejected in the last minutes.'
                           : 'No key was seen in the last minutes.');
            this.rows = null;
            return;
        }

        if (!this.rows) {
            const node = make('ol', { class: 'bars' });

            this.rows = list(node, (item) => this.row(item),
                             (item) => item.key);
            $('top').replaceChildren(node);
        }

        /* a steady rate of r has a count of r * half-life / ln 2 */

        const scale = Math.LN2 / top.half_life;
        const most = top.keys[0].count || 1;

        mark($('top').firstElementChild, 'data-by', top.by);
        this.rows(top.keys.map((item) => ({
            key: item.key, share: item.count / most, rate: item.count * scale,
            low: Math.max(0, item.count - item.error) * scale
        })));
    },


    row(item) {
        const bar = make('i');
        const n = make('span', { class: 'num' });
        const name = isDigest(item.key)
            ? make('code', { title: 'A digest, as ratelimit_log_key says. '
                             + 'The key itself is not known.' }, item.key)
            : make('button', { type: 'button', class: 'key',
                               click: () => foundView.open(item.key) },
                   item.key);

        return {
            node: make('li', null, bar, name, n),
            update(item) {
                bar.style.width = (item.share * 100).toFixed(1) + '%';
                say(n, amount(item.rate) + '/s');
                mark(n, 'title', 'between ' + amount(item.low) + ' and '
                                 + amount(item.rate) + ' a second');
            }
        };
    }
};


/* ---- overrides */

function overrideWords(override) {
    const words = [];

    if (override.ban) {
        words.push('banned');
    }

    if (override.exempt) {
        words.push('exempt');
    }

    if (override.capacity !== null && override.capacity !== undefined) {
        words.push('capacity ' + override.capacity);
    }

    if (override.rate) {
        words.push(override.rate);
    }

    if (override.cost) {
        words.push('cost ' + override.cost);
    }

    return words.join(', ');
}


function overrideKind(override) {
    return override.ban ? 'bad' : override.exempt ? 'ok' : 'plain';
}


function overridePath(limit, key) {
    return 'limits/' + segment(limit) + '/keys/' + segment(key) + '/override';
}


const overridesView = {

    access() {
        this.text = null;

        if (about.overrides === 'off') {
            note($('overrides'), 'Off. ', make('code', null,
                 'ratelimit_overrides on;'), ' lets single keys be banned, '
                 + 'exempted or given limits of their own.');
        }
    },


    async update() {
        if (about.overrides === 'off') {
            return;
        }

        try {
            this.draw(await get('overrides'));

        } catch (error) {
            this.text = null;
            note($('overrides'), error.message);
        }
    },


    draw(answer) {
        const overrides = answer.overrides;
        const text = JSON.stringify([overrides, about.write]);
        const all = Math.max(answer.total || 0, overrides.length);

        say($('overrides-count'), all === 0 ? ''
            : all === overrides.length ? whole(all)
            : overrides.length + ' of ' + whole(all));

        if (this.text !== text) {
            const focus = document.activeElement;
            const at = focus && focus.dataset.override;

            this.text = text;
            this.build(overrides);

            if (at && focus !== document.activeElement) {
                const same = [...$('overrides').querySelectorAll('button')]
                             .find((b) => b.dataset.override === at);

                if (same) {
                    same.focus();
                }
            }
        }

        (this.times || []).forEach((update) => update());
    },


    build(overrides) {
        this.times = [];

        if (overrides.length === 0) {
            note($('overrides'), 'No key has an override.');
            return;
        }

        const node = table([['Key'], ['Limit'], ['Override'], ['Ends', 'num'],
                            ...(about.write ? [['', 'num']] : [])],
                           'Overrides');

        node.className = 'overrides';
        node.append(make('tbody', null, ...overrides.map((override) =>
            this.row(override))));
        $('overrides').replaceChildren(node);
    },


    row(override) {
        const ends = make('td', { class: 'num', 'data-label': 'ends' });
        const id = override.limit + ' ' + override.key;

        if (override.until) {
            ends.title = moment(override.until);
            this.times.push(() => say(ends, 'in '
                                            + span(override.until - now())));
        } else {
            say(ends, 'when removed');
        }

        return make('tr', null,
            make('th', { scope: 'row' },
                 make('button', { type: 'button', class: 'key',
                                  'data-override': 'key ' + id,
                                  click: () => foundView.open(override.key) },
                      override.key),
                 override.reason ? make('div', { class: 'sub' },
                                        override.reason) : null),
            make('td', { 'data-label': 'limit' }, override.limit),
            make('td', { 'data-label': 'override' },
                 make('span', { class: 'pill p-' + overrideKind(override) },
                      overrideWords(override))),
            ends,
            about.write ? make('td', { class: 'num' },
                make('button', { type: 'button', 'data-override': 'end ' + id,
                                 'aria-label': 'Remove the override of '
                                               + override.key + ' in '
                                               + override.limit,
                                 click: () => this.remove(override) },
                     'Remove')) : null);
    },


    async remove(override) {
        const result = $('overrides-result');

        try {
            await write('DELETE', overridePath(override.limit, override.key));
            say(result, 'Removed the override of ' + override.key + ' in '
                        + override.limit + '.');
            mark(result, 'data-kind', 'ok');

        } catch (error) {
            say(result, error.message);
            mark(result, 'data-kind', 'bad');
        }

        show(result, true);
        this.update();
        foundView.refresh();
    }
};


/* ---- one key in all limits */

/* "10r/s" twice is "20r/s"; null: it comes from a variable */

function twice(rate) {
    const parts = /^(\d+(?:\.\d+)?)(r\/\w+)$/.exec(rate || '');

    return parts ? parts[1] * 2 + parts[2] : null;
}


class StateView {

    constructor(state) {
        this.limit = state.limit;
        this.pill = make('span', { class: 'pill' });
        this.bar = make('i');
        this.track = make('span', { class: 'track' }, this.bar);
        this.left = make('span');
        this.wait = make('td', { 'data-label': 'full again' });
        this.where = make('td', { class: 'dim', 'data-label': 'state' });
        this.override = make('td', { 'data-label': 'override' });
        this.buttons = make('td', { class: 'buttons' });
        this.node = make('tr', null,
            make('th', { scope: 'row' }, state.limit),
            make('td', { 'data-label': 'now' }, this.pill),
            make('td', { class: 'gauge', 'data-label': 'left' }, this.track,
                 this.left),
            this.wait, this.where, this.override, this.buttons);

        /* first, so that the others stay where they are when it comes */

        this.remove = this.button('Remove override', 'Back to the limit as '
            + 'configured',
            () => foundView.act(this.limit, 'DELETE', null, 'override removed',
                                true));
        this.reset = this.button('Reset', 'Forget what the key has used',
            () => foundView.act(this.limit, 'DELETE', null, 'reset'));
        this.ban = this.button('Ban', 'Reject all requests of the key',
            () => foundView.put(this.limit, { ban: true }, 'banned'));
        this.exempt = this.button('Exempt', 'Let all requests of the key pass',
            () => foundView.put(this.limit, { exempt: true }, 'exempt'));
        this.raise = this.button('Raise', 'Twice the capacity and the rate',
            () => this.double());
    }


    button(text, title, click) {
        const node = make('button', { type: 'button', title: title,
                                      'data-do': text.toLowerCase(),
                                      click: click }, text);

        this.buttons.append(node);

        return node;
    }


    double() {
        const limit = (here.limits || []).find((l) => l.name === this.limit);
        const override = this.state.override;
        const rate = twice(override && override.rate || limit && limit.rate);
        const body = { capacity: this.state.capacity * 2 };

        if (rate && limit.algorithm !== 'sliding_window_log') {
            body.rate = rate;
        }

        foundView.put(this.limit, body, 'raised to ' + body.capacity);
    }


    update(state) {
        const override = state.override || null;
        const known = state.error === undefined;
        const on = about.overrides !== 'off';
        const held = override && override.ban ? ['bad', 'banned']
                     : override && override.exempt ? ['ok', 'exempt']
                     : !known ? ['plain', 'not known']
                     : state.passes ? ['ok', 'passes'] : ['warn', 'rejected'];

        this.state = state;

        show(this.track, known);
        mark(this.pill, 'class', 'pill p-' + held[0]);
        say(this.pill, held[1]);

        if (known) {
            const share = state.capacity ? state.remaining / state.capacity : 0;

            this.bar.style.width = (Math.min(1, share) * 100).toFixed(1) + '%';
            say(this.left, whole(state.remaining) + ' of '
                           + whole(state.capacity));
            say(this.wait, override && (override.ban || override.exempt)
                           ? '' : this.times(state));
            mark(this.wait, 'title', state.reset ? moment(state.reset) : '');
            say(this.where, state.state === 'memory' ? 'this machine'
                            : state.server || '');
            mark(this.where, 'title', state.redis_key || '');

        } else {
            say(this.left, (state.parameter ? state.parameter + ': ' : '')
                           + state.error + (state.failure
                           ? ': ' + state.failure.replace(/_/g, ' ') : ''));
            say(this.wait, '');
            say(this.where, state.server || '');
        }

        say(this.override, override ? this.words(override) : '');
        mark(this.override, 'title', override && override.reason || '');

        show(this.buttons, about.write);
        show(this.reset, known);
        show(this.ban, on);
        show(this.exempt, on);
        show(this.raise, on && known && state.capacity > 0);

        if (override === null && document.activeElement === this.remove) {
            this.ban.focus();
        }

        show(this.remove, override !== null);
    }


    /* a ban is told by the pill: what is left is its end */

    words(override) {
        const end = override.until
                    ? span(override.until - now()) + ' left' : 'until removed';

        return override.ban || override.exempt ? end
               : overrideWords(override) + ', ' + end;
    }


    times(state) {
        if (state.retry_after) {
            return 'passes in ' + span(state.retry_after);
        }

        if (state.remaining >= state.capacity) {
            return 'full';
        }

        return state.reset ? 'full in ' + span(state.reset - now()) : 'never';
    }
}


const foundView = {

    key: null,
    asked: 0,


    access() {
        const note = $('found-note');

        show($('found-options'), about.write && about.overrides !== 'off');
        show(note, !about.write);
        note.replaceChildren('Read only. To reset, ban, exempt or raise a key '
                             + 'here, the API needs ',
                             make('code', null, 'ratelimit_api write;'), '.');
    },


    open(key) {
        const hash = '#key=' + encodeURIComponent(key);

        $('key').value = key;

        if (location.hash !== hash) {
            history.pushState(null, '', hash);
        }

        this.shown(key);
        $('found-title').focus();
        $('found').scrollIntoView({ block: 'nearest' });
    },


    /* from the address of the page */

    visit() {
        const parts = /^#key=(.+)$/.exec(location.hash);
        let key = '';

        try {
            key = parts ? decodeURIComponent(parts[1]) : '';
        } catch (error) {
            key = '';
        }

        if (key) {
            $('key').value = key;
            this.shown(key);

        } else {
            this.close();
        }
    },


    shown(key) {
        if (this.key !== key) {
            $('found-list').replaceChildren();
            this.list = null;
            show($('found-result'), false);
        }

        this.key = key;
        say($('found-key'), key);
        this.access();
        show($('found'), true);
        this.refresh();
    },


    close() {
        this.key = null;
        show($('found'), false);

        if (location.hash.startsWith('#key=')) {
            history.pushState(null, '', location.pathname + location.search);
        }
    },


    async refresh() {
        const key = this.key;
        const asked = ++this.asked;

        if (key === null) {
            return;
        }

        try {
            const answer = await get('keys/' + segment(key));

            if (asked === this.asked && key === this.key) {
                this.draw(answer.limits);
            }

        } catch (error) {
            if (asked === this.asked && key === this.key) {
                note($('found-list'), error.message);
                this.list = null;
            }
        }
    },


    draw(states) {
        if (states.length === 0) {
            note($('found-list'), 'No limit is in use.');
            return;
        }

        if (!this.list) {
            const body = make('tbody');
            const node = table([['Limit'], ['Now'], ['Left', 'gauge'],
                                ['Full again'], ['State'], ['Override'],
                                ['']], 'The key in all limits');

            node.className = 'states';
            node.append(body);
            this.list = list(body, (state) => new StateView(state),
                             (state) => state.limit);
            $('found-list').replaceChildren(node);
        }

        this.list(states);
    },


    async act(limit, method, body, done, override) {
        const result = $('found-result');
        const key = this.key;

        try {
            const path = override || body ? overridePath(limit, key)
                : 'limits/' + segment(limit) + '/keys/' + segment(key);

            await write(method, path, body);
            say(result, limit + ': ' + done + '.');
            mark(result, 'data-kind', 'ok');

        } catch (error) {
            say(result, limit + ': ' + error.message);
            mark(result, 'data-kind', 'bad');
        }

        show(result, true);
        overridesView.update();
        await this.refresh();
    },


    put(limit, body, done) {
        const until = $('until');
        const reason = $('reason').value.trim();

        if (until.value) {
            body.until = until.value;
            done += ' for ' + until.selectedOptions[0].textContent;
        }

        if (reason) {
            body.reason = reason;
        }

        return this.act(limit, 'PUT', body, done);
    }
};


/* ---- which capacity: what a dry run has learned */

class CurveView {

    constructor(limit) {
        this.name = make('h3', null, limit.name);
        this.words = make('p', { class: 'dim' });
        this.line = make('path', { class: 'curve' });
        this.area = make('path', { class: 'under' });
        this.grid = make('path', { class: 'grid' });
        this.now = make('path', { class: 'mark' });
        this.low = make('span');
        this.high = make('span');
        this.most = make('span', { class: 'most' });
        this.answers = make('ul', { class: 'answers' });
        this.node = make('div', { class: 'advise' }, this.name, this.words,
            make('div', { class: 'big' }, this.most,
                 make('svg', { viewBox: '0 0 400 110', class: 'chart',
                               preserveAspectRatio: 'none', role: 'img',
                               'aria-label': 'rejected share by capacity' },
                      this.grid, this.area, this.now, this.line),
                 make('div', { class: 'axis dim' }, this.low, this.high)),
            this.answers);
    }


    update(limit) {
        const text = JSON.stringify(limit.advise);

        if (this.text === text) {
            return;
        }

        this.text = text;
        this.draw(limit);
    }


    draw(limit) {
        const curve = limit.advise.curve.filter((p) => p.capacity > 0);

        say(this.words, whole(limit.advise.requests)
                        + ' requests in the dry run, capacity now '
                        + (limit.capacity || 'as in ' + limit.rate));

        if (curve.length < 2) {
            this.answers.replaceChildren(make('li', null,
                'There are not enough requests yet.'));
            return;
        }

        const first = Math.log(curve[0].capacity);
        const last = Math.log(curve[curve.length - 1].capacity);
        const most = Math.max(...curve.map((p) => p.rejected)) || 1;
        const x = (c) => ((Math.log(c) - first) / (last - first || 1) * 400);
        const y = (share) => 108 - share / most * 102;
        const points = curve.map((p) => x(p.capacity).toFixed(1) + ' '
                                        + y(p.rejected).toFixed(1));

        mark(this.line, 'd', 'M' + points.join('L'));
        mark(this.area, 'd', 'M0 108L' + points.join('L') + 'L400 108Z');
        mark(this.grid, 'd', [0, 0.5, 1].map((part) =>
            'M0 ' + y(part * most) + 'H400').join(''));
        say(this.most, percent(most) + ' rejected');
        say(this.low, 'capacity ' + curve[0].capacity);
        say(this.high, String(curve[curve.length - 1].capacity));

        /* the capacity as configured, if it is a number in the chart */

        const at = x(+limit.capacity);

        mark(this.now, 'd', at >= 0 && at <= 400
                            ? 'M' + at.toFixed(1) + ' 0V108' : '');

        this.answers.replaceChildren(...[
            [0.1, '10\u2009% at most'], [0.01, '1\u2009% at most'],
            [0.001, '0.1\u2009% at most'], [0, 'nothing']
        ].map(([share, words]) => {
            const enough = curve.find((p) => p.rejected <= share);

            return make('li', null, make('b', null, enough
                        ? whole(enough.capacity)
                        : '>' + whole(curve[curve.length - 1].capacity)),
                        ' rejects ' + words);
        }));
    }
}


const adviseView = {

    update() {
        const limits = here.limits.filter((limit) => limit.advise);

        this.list = this.list || list($('advise'),
                                      (limit) => new CurveView(limit),
                                      (limit) => limit.name);
        this.list(limits);
        show($('advise-card'), limits.length > 0);
    }
};


/* ---- which limits apply to a request */

const explainView = {

    async ask() {
        const node = $('explain');
        const query = new URLSearchParams({
            host: $('explain-host').value.trim() || location.hostname,
            uri: $('explain-uri').value.trim(),
            method: $('explain-method').value
        });

        try {
            this.draw(node, await get('explain?' + query));

        } catch (error) {
            note(node, error.message);
        }
    },


    draw(node, answer) {
        const found = answer.location === null ? 'no location'
                      : 'location ' + answer.location + ' ('
                        + answer.location_by + ')';

        node.replaceChildren(
            make('p', { class: 'note' }, 'Server ' + answer.server + ' (by '
                 + answer.server_by + '), ' + found + ': ',
                 make('b', null, answer.limited
                      ? answer.limits.length === 1 ? 'one limit'
                        : answer.limits.length + ' limits' : 'not limited')),
            make('ul', { class: 'answers' },
                 ...answer.limits.map((limit) => make('li', null,
                     make('b', null, limit.name), ' by ',
                     make('code', null, limit.key), ', '
                     + limit.mode.replace('_', ' ') + ' in the ' + limit.phase
                     + ' phase, '
                     + (limit.state === 'memory' ? 'in memory of this machine'
                        : 'without Redis: '
                          + (ON_ERROR[limit.on_error] || limit.on_error)))),
                 ...answer.notes.map((text) =>
                     make('li', { class: 'dim' }, text))));
    }
};


/* ---- polling */

let slow = 0;                       /* when to ask for what changes slowly */
let index = 0;                      /* when to ask for the index */


function draw() {
    if (here.limits) {
        limitsView.update();
        serversView.update();
        adviseView.update();
    }

    machinesView.update();
    outageView.update();
    liveUpdate();
}


/* runs often, and asks those whose time has come; nobody looks: it rests */

async function tick() {
    const at = Date.now();

    if (document.hidden) {
        return;
    }

    for (const machine of machines) {
        if (!machine.asking && at >= machine.next) {
            machine.poll().then(draw);
        }
    }

    if (!here.error && at >= index) {
        index = at + 30 * SECOND;

        try {
            await aboutUpdate();
        } catch (error) {
            index = at + 2 * SECOND;
        }
    }

    if (here.limits && !here.error && at >= slow) {
        slow = at + 3 * SECOND;
        topView.update();
        overridesView.update();
        foundView.refresh();
    }

    liveUpdate();
}


function start() {
    $('find').addEventListener('submit', (event) => {
        event.preventDefault();

        if ($('key').value) {
            foundView.open($('key').value);
        }
    });

    $('found-close').addEventListener('click', () => {
        foundView.close();
        $('key').focus();
    });

    $('found-options').addEventListener('submit', (event) =>
        event.preventDefault());
    $('top-form').addEventListener('submit', (event) =>
        event.preventDefault());
    $('top-form').addEventListener('change', () => topView.update());

    $('explain-form').addEventListener('submit', (event) => {
        event.preventDefault();
        explainView.ask();
    });

    document.addEventListener('keydown', (event) => {
        const field = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);

        if (event.key === '/' && !field && !event.ctrlKey && !event.metaKey) {
            event.preventDefault();
            $('key').select();

        } else if (event.key === 'Escape' && foundView.key !== null) {
            foundView.close();
            $('key').focus();
        }
    });

    window.addEventListener('popstate', () => foundView.visit());
    document.addEventListener('visibilitychange', tick);

    foundView.visit();
    tick();
    setInterval(tick, SECOND / 4);
}


(async function () {
    try {
        Object.assign(config, (await ask('', 'config.json'))[0]);

    } catch (error) {
        show($('outage'), true);
        say($('outage'), 'config.json: ' + error.message + '. Reload the page '
                         + 'to try again.');
        mark($('live'), 'data-state', 'bad');
        say($('live').lastElementChild, 'stopped');
        return;
    }

    here = new Machine('this machine', config.api);
    machines = [here, ...config.machines.map((machine) =>
        new Machine(machine.name, machine.api))];
    $('openapi').href = config.api + 'openapi.json';

    start();
})();

})();
