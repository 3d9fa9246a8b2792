/* Elements from data. Text only ever becomes text: nothing in the console parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** element("a", {href, click: f}, child, "text"): functions listen, false and null leave an attribute out. */
export function element(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export const byId = (id) => document.getElementById(id);
