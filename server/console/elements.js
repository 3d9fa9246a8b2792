/* Elements from data. Text only ever becomes text: nothing in the console parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) node.append(child);
  return node;
}

/** element("a", {href, click: f}, child, "text", [more]): functions listen, false and null leave an attribute out. Lists of
 * children may be longer than a call's arguments. */
export function element(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export const byId = (id) => document.getElementById(id);
