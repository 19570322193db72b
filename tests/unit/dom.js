// A small document for the script of the page, made from the tree that the test parses. What it lacks fails.
"use strict";

class Element {
  constructor(tag) { Object.assign(this, {tag, attributes: {}, nodes: [], hidden: false}); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...nodes) { for (const node of nodes) this.nodes.push(node instanceof Element ? node : String(node)); }
  replaceChildren(...nodes) { this.nodes = []; this.append(...nodes); }
  get textContent() { return this.nodes.map(node => node instanceof Element ? node.textContent : node).join(""); }
  set textContent(text) { this.nodes = [String(text)]; }
  get className() { return this.attributes.class || ""; }
  set className(names) { this.attributes.class = names; }
  get classList() {
    const change = (name, wanted) => {
      const names = new Set(this.className.split(" ").filter(each => each));
      if (wanted) names.add(name); else names.delete(name);
      this.className = [...names].join(" ");
    };
    return {toggle: change, add: name => change(name, true), remove: name => change(name, false)};
  }
  get dataset() {
    return Object.fromEntries(Object.entries(this.attributes).filter(([name]) => name.startsWith("data-"))
      .map(([name, value]) => [name.slice(5), value]));
  }
  * all() { for (const node of this.nodes) if (node instanceof Element) { yield node; yield* node.all(); } }
  querySelectorAll(selector) {
    const [, attribute, name] = selector.match(/^(?:\[([\w-]+)\]|\.(\w+))$/);
    return [...this.all()].filter(each => attribute ? attribute in each.attributes : each.className.split(" ").includes(name));
  }
}

function build([tag, attributes, nodes]) {
  const element = new Element(tag);
  element.attributes = attributes;
  element.hidden = "hidden" in attributes;
  element.append(...nodes.map(node => typeof node === "string" ? node : build(node)));
  return element;
}

const root = build(TREE);
const find = id => [...root.all()].find(each => each.attributes.id === id);
const document = {
  hidden: false,
  body: [...root.all()].find(each => each.tag === "body"),
  createElement: tag => new Element(tag),
  getElementById: find,
  querySelectorAll: selector => root.querySelectorAll(selector),
  addEventListener: () => undefined,
};
const AbortSignal = {timeout: () => null};
const location = {reloads: 0, reload() { this.reloads += 1; }};
globalThis.setTimeout = () => undefined;
let answer = null;
async function fetch(path) {
  if (path !== "/status" || answer === null) throw new TypeError("refused");
  return answer;
}
